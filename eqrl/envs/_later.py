"""Imports that wait until what is imported is used."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module, which it imports when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Else it would find itself.
        _forget(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def imported_later(*names: str) -> Iterator[None]:
    """Within it, whoever imports these modules has them once they are used."""
    modules = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for module in modules.values():
            _forget(module)


def _forget(module: ModuleType) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
