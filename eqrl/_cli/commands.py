"""The commands, as they are parsed."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from .. import presets
from .._agents.base import AnyAgent
from .._pytree.fields import check_integer
from .._reporting.learning_curve import Interval
from .._reporting.statistics import Center
from .._run.agents import (
    AGENTS,
    SkillOptions,
    find_agent,
    import_agent,
    is_path,
    name_of,
)
from .._run.config import (
    Population,
    Prior,
    Run,
    Settings,
    SkillSchedule,
    Training,
    read_config,
)
from .._storage.files import __version__
from .._types.custom_types import Mode
from ..presets import Preset
from .arguments import OWN, command_type
from .devices import make_devices_of


# Ranges in which the default networks learn something on small problems.
_PRIORS: tuple[Prior, ...] = (
    ("lr", "loguniform", 3e-5, 3e-2),
    ("actor_lr", "loguniform", 3e-5, 3e-2),
    ("critic_lr", "loguniform", 3e-5, 3e-2),
    ("discount", "oneminus-loguniform", 1e-3, 1e-1),
)


@dataclasses.dataclass(frozen=True)
class Place:
    """Folder of a run, how often it is written, and whether it is overwritten."""

    folder: Path | None
    overwrite: bool = False
    resume: bool = False
    checkpoint_every: int | None = None

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            check_integer("checkpoint_every", self.checkpoint_every, least=1)


@dataclasses.dataclass(frozen=True)
class Train:
    """A run of `eqrl train`."""

    run: Run[Training]
    place: Place
    tensorboard: bool
    preset: Preset | None = dataclasses.field(default=None, compare=False)
    """The preset whose values are its defaults, if any."""


@dataclasses.dataclass(frozen=True)
class Pbt:
    """A run of `eqrl pbt`."""

    run: Run[Population]
    place: Place


@dataclasses.dataclass(frozen=True)
class Disk:
    """A run of `eqrl disk`."""

    run: Run[SkillSchedule]
    place: Place
    tensorboard: bool


@dataclasses.dataclass(frozen=True)
class Resume:
    """Resume a run that was stopped or killed, from its last checkpoint."""

    resume: Path
    """Folder of the run, from which all else is taken."""

    checkpoint_every: int | None = None
    """Environment steps between checkpoints, as of a new run."""

    tensorboard: bool = False
    """Write TensorBoard files into the folder, if the run is not a population."""

    agent: str | None = None
    """Class of its agent, if that was one of your own; a folder never imports it."""


@dataclasses.dataclass(frozen=True)
class Rerun:
    """Train again what a run trained, as its `config.json` has it, in a new folder."""

    source: tyro.conf.Positional[Path]
    """Folder of the run to repeat."""

    folder: Path | None = None
    """Folder of the new run; by default a new one in runs."""

    tensorboard: bool = False
    """Write TensorBoard files into the folder, if the run is not a population."""

    agent: str | None = None
    """Class of its agent, if that was one of your own; a folder never imports it."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play episodes with each policy of a run and print the returns."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run."""

    num_episodes: int | None = None
    """Episodes of each policy; by default 64 of brax, 1024 of other environments."""

    mode: Mode = "greedy"
    """How to choose actions: at random, sampled as in training, or greedily."""

    seed: int = 0
    """Seed of the episodes; the default plays those with which training ended."""

    agent: str | None = None
    """Class of its agent, if that was one of your own; a folder never imports it."""


@dataclasses.dataclass(frozen=True)
class Render:
    """Play one greedy episode of a run and write what it looks like."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run."""

    seed: int | None = None
    """Seed or member, from 0; by default the first seed or the best member."""

    skill: int | None = None
    """Skill to show, from 0; of diayn if the skills are discrete."""

    output: Path | None = None
    """File to write: .html or .gif of brax, .gif of gymnax, else .png, .pdf or .svg."""

    agent: str | None = None
    """Class of its agent, if that was one of your own; a folder never imports it."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw the learning curves of runs into one figure."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of the runs, each of which becomes a curve."""

    output: Path = Path("learning_curves.png")
    """File to write, whose suffix decides the format: .png, .pdf or .svg."""

    metric: str | None = None
    """Column of metrics.csv; by default episode_return, of skills intrinsic_reward."""

    center: Center = "mean"
    """Mean or interquartile mean of the seeds."""

    interval: Interval = 0.95
    """Level of the bootstrap interval over seeds, in (0, 1]; or their range."""

    smoothing: int = 1
    """Rows of the metrics to average: each and those right before it."""

    title: str | None = None
    """Above the axes; by default agent and environment, if all runs have the same."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a policy of a run into one file, which `eqrl.load_policy` loads."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run."""

    output: Path
    """File to write."""

    seed: int | None = None
    """Seed or member, from 0; by default the first seed or the best member."""

    skill: int | None = None
    """Skill to export, from 0; of diayn if the skills are discrete."""

    agent: str | None = None
    """Class of its agent, if that was one of your own; a folder never imports it."""


Command = Train | Pbt | Disk | Evaluate | Render | Plot | Export


def parse(args: Sequence[str]) -> Command:
    """The command in `args`.

    Exits with 2 if there is none, with 0 after help and after the version.
    """
    args = list(args)
    if args == ["--version"]:
        print(f"eqrl {__version__}")
        raise SystemExit(0)
    trains = args[:1] in (["train"], ["pbt"], ["disk"])
    if trains and any(word.partition("=")[0] == "--resume" for word in args):
        return _parse_resume(args)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--agent", nargs="?")
    name = parser.parse_known_args(args)[0].agent
    # What trains has options of the agent, so its class is needed to parse.
    words = 1 if args[:1] == ["disk"] else 2
    own = import_agent(name) if trains and name is not None and is_path(name) else None
    if args[:1] in (["train"], ["pbt"]) and not _names_agent(args[1:]):
        if name is not None and own is None:
            raise ValueError(
                f"`agent={name!r}` must be written as `package.module:Class`; an agent "
                f"of eqrl's own is named without `--agent`: `eqrl {args[0]} {name}`."
            )
        args.insert(1, "sac" if own is None else OWN)
    # `Run` raises an error for an unknown name.
    given = find_agent(name if name in AGENTS else SkillOptions.agent, own)
    preset = _find_preset(args)
    command = tyro.cli(
        command_type(
            {" ".join(args[:words]): given},
            preset,
            rerun=Rerun,
            evaluate=Evaluate,
            render=Render,
            plot=Plot,
            export=Export,
        ),
        prog="eqrl",
        description="Train, evaluate and render reinforcement learning agents. "
        "`eqrl --version` prints the version.",
        args=args,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    if isinstance(command, (Evaluate, Render, Plot, Export)):
        return command
    if isinstance(command, Rerun):
        make_devices_of(command.source)
        run = read_config(command.source, import_given(command.agent))
        place = Place(folder=command.folder)
        return _command_of(run, place, command.source, tensorboard=command.tensorboard)
    if args[0] == "disk":
        run, output = _make_run(command, command.schedule, own), command.output
        return Disk(run, _place_of(output), output.tensorboard)
    options, output = command.options, command.options.output
    if isinstance(options.schedule, Training):
        if preset is not None:
            print(f"by default the preset of {preset}")
        run = _make_run(options, options.schedule, own)
        return Train(run, _place_of(output), output.tensorboard, preset)
    priors = options.priors.prior or _default_priors(options.agent)
    run = _make_run(options, options.schedule, own, priors)
    return Pbt(run, _place_of(output))


def _place_of(output: Any) -> Place:
    return Place(
        folder=output.folder,
        overwrite=output.overwrite,
        checkpoint_every=output.checkpoint_every,
    )


def import_given(path: str | None) -> type[AnyAgent] | None:
    """The class that was given with `--agent`, if one was."""
    return None if path is None else import_agent(path)


def _parse_resume(args: list[str]) -> Train | Pbt | Disk:
    """The run that `eqrl train --resume FOLDER` resumes, and so the others."""
    command_name, *words = args
    agent_name = None if words[0].startswith("-") else words.pop(0)
    options = tyro.cli(
        Resume,
        prog=f"eqrl {command_name}",
        args=words,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    make_devices_of(options.resume)
    run = read_config(options.resume, import_given(options.agent))
    place = Place(
        folder=options.resume,
        resume=True,
        checkpoint_every=options.checkpoint_every,
    )
    command = _command_of(run, place, options.resume, tensorboard=options.tensorboard)
    name = type(command).__name__.lower()
    if agent_name is not None and agent_name not in (run.agent, OWN):
        raise ValueError(
            f"`{options.resume}` is a run of `{run.agent}`, not of `{agent_name}`; "
            f"resume it by `eqrl {name} --resume {options.resume}`."
        )
    if name != command_name:
        raise ValueError(
            f"`{options.resume}` is a run of `eqrl {name}`; resume it by "
            f"`eqrl {name} --resume {options.resume}`."
        )
    return command


def _command_of(
    run: Run[Any], place: Place, source: Path, *, tensorboard: bool
) -> Train | Pbt | Disk:
    if isinstance(run.schedule, Training):
        return Train(run, place, tensorboard)
    if isinstance(run.schedule, SkillSchedule):
        return Disk(run, place, tensorboard)
    if tensorboard:
        raise ValueError(
            f"`--tensorboard` is for runs of seeds, and `{source}` is a population; "
            "leave it out."
        )
    return Pbt(run, place)


def _make_run(
    options: Any,
    schedule: Training | Population | SkillSchedule,
    own: type[AnyAgent] | None,
    priors: tuple[Prior, ...] = (),
) -> Run:
    is_disk = isinstance(schedule, SkillSchedule)
    name = options.learner.agent if is_disk else options.name
    skills = getattr(options, "skills", None)
    if own is not None and skills is None:
        name = name_of(own)
    if own is not None and skills is not None:
        skills = dataclasses.replace(skills, agent=name_of(own))
    return Run(
        agent=name,
        agent_options=dataclasses.asdict(options.agent),
        trainer_options=dataclasses.asdict(options.trainer),
        settings=options.settings,
        schedule=schedule,
        skills=skills,
        priors=priors,
        reward_options=dataclasses.asdict(options.reward) if is_disk else {},
        agent_type=own,
    )


def _default_priors(agent_options: object) -> tuple[Prior, ...]:
    """The priors of those hyperparameters that the agent has."""
    names = vars(agent_options)
    priors = tuple(prior for prior in _PRIORS if prior[0] in names)
    if not priors:
        raise ValueError(
            "This agent has none of "
            + ", ".join(f"`{name}`" for name, *_ in _PRIORS)
            + " to vary; name others, as `--prior NAME KIND LOW HIGH`."
        )
    return priors


def _names_agent(args: Sequence[str]) -> bool:
    return len(args) > 0 and (
        args[0] in ("-h", "--help") or not args[0].startswith("-")
    )


def _find_preset(args: Sequence[str]) -> Preset | None:
    """Finds the preset of the agent and the environment of `eqrl train`, if any.

    Presets hold for their backend and time limit only. What is annealed over the whole
    training follows the number of steps.
    """
    if len(args) < 2 or args[0] != "train":
        return None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--env", "--backend", "--max-steps", "--num-steps"):
        parser.add_argument(name, nargs="?")
    given = parser.parse_known_args([_hyphenated(arg) for arg in args])[0]
    preset = presets.find(args[1], Settings.env if given.env is None else given.env)
    if preset is None or given.max_steps is not None:
        return None
    if given.backend is not None and given.backend != preset.backend:
        return None
    if "anneal_steps" not in preset.options or given.num_steps is None:
        return preset
    try:
        num_steps = int(given.num_steps)
    except ValueError:
        # tyro reports an invalid number.
        return preset
    options = {**preset.options, "anneal_steps": float(num_steps)}
    return dataclasses.replace(preset, options=options)


def _hyphenated(arg: str) -> str:
    """An option as its name is written here; others with `_` mean the same."""
    if not arg.startswith("--"):
        return arg
    name, equals, value = arg.partition("=")
    return name.replace("_", "-") + equals + value
