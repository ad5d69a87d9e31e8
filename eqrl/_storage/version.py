import importlib.metadata
import re


def library_version() -> str:
    """The version of this library, as files that it writes name it."""
    try:
        return importlib.metadata.version("eqrl")
    except importlib.metadata.PackageNotFoundError:
        # It is run from its source, without being installed.
        return "0"


def is_newer(version: object) -> bool:
    """Whether a version that stands in a file is later than this library's."""
    return isinstance(version, str) and _numbers(version) > _numbers(library_version())


def _numbers(version: str) -> list[int]:
    """The numbers that a version begins with."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []
