"""The precision of the products of an agent's networks, as an option of benchmarks."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar


# Another library's environment, which imports this module too, lacks the packages.
if TYPE_CHECKING:
    from eqrl.nn import Precision


Agent = TypeVar("Agent")


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--precision`."""
    choices = ("float32", "bfloat16")
    parser.add_argument(
        "--precision", choices=choices, default="float32", help="of layers"
    )


def in_precision(agent: Agent, precision: "Precision") -> Agent:
    """The agent, in which every factory of networks has this precision."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(agent):  # pyright: ignore[reportArgumentType]
        value = getattr(agent, field.name, None)
        if field.name == "precision":
            changes[field.name] = precision
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed = in_precision(value, precision)
            if changed is not value:
                changes[field.name] = changed
    return dataclasses.replace(agent, **changes) if changes else agent  # pyright: ignore[reportArgumentType]
