import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


PARTIAL = ".partial"
"""Stands behind the name of a file that is not whole yet."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path, whose file replaces `path` if the block succeeds."""
    partial = path.with_name(f"{path.name}{PARTIAL}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
