"""The commands, as they are parsed."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from .._run import (
    AGENTS,
    Population,
    Prior,
    Run,
    SkillOptions,
    Training,
    read_config,
)
from .._types.custom_types import Mode
from .arguments import command_type


# Ranges in which the default networks learn something on small problems.
_PRIORS: tuple[Prior, ...] = (
    ("actor_lr", "loguniform", 3e-5, 3e-2),
    ("critic_lr", "loguniform", 3e-5, 3e-2),
    ("discount", "oneminus-loguniform", 1e-3, 1e-1),
)


@dataclasses.dataclass(frozen=True)
class Train:
    """A run of `eqrl train`."""

    run: Run[Training]
    folder: Path | None
    tensorboard: bool
    overwrite: bool = False


@dataclasses.dataclass(frozen=True)
class Pbt:
    """A run of `eqrl pbt`."""

    run: Run[Population]
    folder: Path | None
    overwrite: bool = False


@dataclasses.dataclass(frozen=True)
class Rerun:
    """Train again what a run trained, as its `config.json` has it, in a new folder."""

    source: tyro.conf.Positional[Path]
    """Folder of the run to repeat."""

    folder: Path | None = None
    """Folder of the new run; by default a new one in runs."""

    tensorboard: bool = False
    """Write TensorBoard files into the folder, if the run is no population."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play episodes with each policy of a run and print the returns."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run."""

    num_episodes: int = 64
    """Episodes of each policy."""

    mode: Mode = "greedy"
    """How to choose actions: at random, sampled as in training, or greedily."""

    seed: int = 0
    """Seed of the episodes."""


@dataclasses.dataclass(frozen=True)
class Render:
    """Play one greedy episode of a run and write what it looks like."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run."""

    seed: int | None = None
    """Seed or member, from 0; by default the first seed or the best member."""

    skill: int | None = None
    """Skill to show, from 0, if the skills are discrete."""

    output: Path | None = None
    """File to write: .html of brax, .gif of gymnax, else .png."""


Command = Train | Pbt | Evaluate | Render


def parse(args: Sequence[str]) -> Command:
    """The command in `args`. Exits with 2 if there is none, with 0 after help."""
    args = list(args)
    if args[:1] in (["train"], ["pbt"]) and not _names_agent(args[1:]):
        args.insert(1, "sac")
    command = tyro.cli(
        command_type(_inner_agent(args), Rerun, Evaluate, Render),
        prog="eqrl",
        description="Train, evaluate and render reinforcement learning agents.",
        args=args,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    if isinstance(command, (Evaluate, Render)):
        return command
    if isinstance(command, Rerun):
        return _repeat(command)
    options, output = command.options, command.options.output
    if isinstance(options.schedule, Training):
        run = _make_run(options, options.schedule)
        return Train(run, output.folder, output.tensorboard, output.overwrite)
    run = _make_run(options, options.schedule, options.priors.prior or _PRIORS)
    return Pbt(run, output.folder, output.overwrite)


def _repeat(command: Rerun) -> Train | Pbt:
    run = read_config(command.source)
    if isinstance(run.schedule, Training):
        return Train(run, command.folder, command.tensorboard)
    if command.tensorboard:
        raise ValueError(
            f"`--tensorboard` is for runs of seeds, and `{command.source}` is a "
            "population; leave it out."
        )
    return Pbt(run, command.folder)


def _make_run(
    options: Any, schedule: Training | Population, priors: tuple[Prior, ...] = ()
) -> Run:
    return Run(
        agent=options.name,
        agent_options=dataclasses.asdict(options.agent),
        trainer_options=dataclasses.asdict(options.trainer),
        settings=options.settings,
        schedule=schedule,
        skills=getattr(options, "skills", None),
        priors=priors,
    )


def _names_agent(args: Sequence[str]) -> bool:
    return len(args) > 0 and (
        args[0] in ("-h", "--help") or not args[0].startswith("-")
    )


def _inner_agent(args: Sequence[str]) -> str:
    """The agent within diayn: the command has its options, so it is needed to parse."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--agent", nargs="?")
    name = parser.parse_known_args(args)[0].agent
    # `Run` raises an error for an unknown name.
    return name if name in AGENTS else SkillOptions.agent
