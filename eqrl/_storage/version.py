import re


# That of the installed package is taken from here, and files that are written name it.
__version__ = "0.1.0"


def is_newer(version: object) -> bool:
    """Whether a version that stands in a file is later than this library's."""
    return isinstance(version, str) and _numbers(version) > _numbers(__version__)


def _numbers(version: str) -> list[int]:
    """The numbers that a version begins with."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []
