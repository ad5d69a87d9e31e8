"""What can be given on the command line."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from .._run import AGENTS, Population, Prior, Run, Skills, Training
from .._types.custom_types import Mode
from .arguments import command_type


# In a range in which the default networks learn something on small problems.
_PRIORS: tuple[Prior, ...] = (
    ("actor_lr", "loguniform", 3e-5, 3e-2),
    ("critic_lr", "loguniform", 3e-5, 3e-2),
    ("discount", "oneminus-loguniform", 1e-3, 1e-1),
)


@dataclasses.dataclass(frozen=True)
class Train:
    """A run to be made."""

    run: Run[Training]
    folder: Path | None
    tensorboard: bool


@dataclasses.dataclass(frozen=True)
class Pbt:
    """A population to be trained."""

    run: Run[Population]
    folder: Path | None


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

    seed: int | None = None
    """Which seed or member, from 0; by default the first or the best, respectively."""

    skill: int | None = None
    """Which skill to show, from 0, where there is a number of them."""

    output: Path | None = None
    """File to write: .html of brax, .gif of gymnax, else .png."""


Command = Train | Pbt | Evaluate | Render


def parse(args: Sequence[str]) -> Command:
    """The command in `args`. Exits with 2 where there is none, with 0 after help."""
    args = list(args)
    if args[:1] in (["train"], ["pbt"]) and not _names_agent(args[1:]):
        args.insert(1, "sac")
    command = tyro.cli(
        command_type(_inner_agent(args), Evaluate, Render),
        prog="eqrl",
        description="Train, evaluate and render reinforcement learning agents.",
        args=args,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    if isinstance(command, (Evaluate, Render)):
        return command
    options = command.options
    if isinstance(options.schedule, Training):
        run = _make_run(options, options.schedule)
        return Train(run, options.output.folder, options.output.tensorboard)
    priors = options.priors.prior or _PRIORS
    return Pbt(_make_run(options, options.schedule, priors), options.output.folder)


def _make_run(
    options: Any, schedule: Training | Population, priors: tuple[Prior, ...] = ()
) -> Run[Any]:
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
    """The agent within diayn, whose options are among those of the command."""
    name = Skills.agent
    for index, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        if option == "--agent":
            name = value if equals else "".join(args[index + 1 : index + 2])
    # `Skills` refuses any other.
    return name if name in AGENTS else Skills.agent
