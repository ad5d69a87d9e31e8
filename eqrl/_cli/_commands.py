"""What can be given on the command line."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import tyro

from .._agents import SAC, TD3
from .._custom_types import Mode
from .._run import Run, Settings
from .._trainer import Trainer
from ._options import options_of


# The library's defaults are those of the papers, for larger networks and problems.
_DEFAULTS = {
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "temperature_lr": 1e-3,
    "batch_size": 64,
}


@dataclasses.dataclass(frozen=True)
class Output:
    """What a run writes."""

    folder: Path | None = None
    """Where to write; by default runs/<agent>-<env>-<time>."""

    tensorboard: bool = False
    """Write files for TensorBoard too."""


@dataclasses.dataclass(frozen=True)
class Train:
    """A run to be made."""

    run: Run
    output: Output


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play episodes with each policy of a run and print the returns."""

    folder: tyro.conf.Positional[Path]
    """Of the run."""

    num_episodes: int = 64
    """Episodes of each policy."""

    mode: Mode = "greedy"
    """How actions are picked: at random, sampled as in training, or greedily."""

    seed: int = 0
    """Number from which the episodes are drawn."""


@dataclasses.dataclass(frozen=True)
class Render:
    """Play one greedy episode of a run and write what it looks like."""

    folder: tyro.conf.Positional[Path]
    """Of the run."""

    seed: int = 0
    """Which policy of a run with several seeds, from 0."""

    output: Path | None = None
    """File to write: .html of brax, .gif of gymnax, else .png."""


def parse(args: Sequence[str]) -> Train | Evaluate | Render:
    """The command in `args`. Exits with 2 where there is none, with 0 after help."""
    args = list(args)
    if args[:1] == ["train"] and not _names_agent(args[1:]):
        args.insert(1, "sac")
    command = tyro.cli(
        _command_type(),
        prog="eqrl",
        description="Train, evaluate and render reinforcement learning agents.",
        args=args,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    if isinstance(command, (Evaluate, Render)):
        return command
    options = command.options
    run = Run(
        agent=options.name,
        agent_options=dataclasses.asdict(options.agent),
        trainer_options=dataclasses.asdict(options.trainer),
        settings=options.settings,
    )
    return Train(run=run, output=options.output)


def _names_agent(args: Sequence[str]) -> bool:
    return len(args) > 0 and (
        args[0] in ("-h", "--help") or not args[0].startswith("-")
    )


def _command_type() -> Any:
    """Of what `tyro` parses, which has a field for every option."""
    agents = _train_type("sac", SAC) | _train_type("td3", TD3)
    train = dataclasses.make_dataclass("TrainCommand", [("options", agents)])
    train.__doc__ = "Train an agent; without a name, that is sac."
    return (
        _named("train", train) | _named("evaluate", Evaluate) | _named("render", Render)
    )


def _named(name: str, command: type) -> Any:
    return Annotated[command, tyro.conf.subcommand(name)]


def _train_type(name: str, agent: type[eqx.Module]) -> Any:
    options = dataclasses.make_dataclass(
        f"Train{agent.__name__}",
        [
            ("settings", Settings),
            ("output", Output),
            ("agent", options_of(agent, _DEFAULTS)),
            ("trainer", options_of(Trainer, _DEFAULTS)),
        ],
        namespace={"name": name},
    )
    options.__doc__ = (agent.__doc__ or "").partition("\n")[0]
    return _named(name, options)
