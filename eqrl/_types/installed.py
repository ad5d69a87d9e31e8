"""Optional packages, which the extras of eqrl install."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager


class NotInstalledError(ModuleNotFoundError):
    """A package of one of eqrl's extras is not installed."""


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Makes the error of importing a missing package say how to install it.

    `what` needs the package, and `extra` installs it, as in `eqrl[plots]`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "eqrl"):
            raise
        message = not_installed(what, package, extra)
        raise NotInstalledError(message, name=package) from error


def not_installed(what: str, package: str, extra: str) -> str:
    """A message that names what needs a package, and how to install it."""
    return (
        f"{what} needs {package}, which is not installed: "
        f'`pip install "eqrl[{extra}]"`.'
    )


def check_installed(package: str, what: str, extra: str) -> None:
    """Checks that a package is installed, or raises the error of `needed`."""
    if not is_installed(package):
        raise NotInstalledError(not_installed(what, package, extra), name=package)


def is_installed(package: str) -> bool:
    """Whether there is such a package."""
    return importlib.util.find_spec(package) is not None
