"""The commands, as they are parsed."""

import argparse
import contextlib
import dataclasses
import difflib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from .. import presets
from .._agents.base import AnyAgent
from .._pytree.fields import check_integer
from .._reporting.learning_curve import Interval, LogarithmicAxis
from .._reporting.statistics import Center
from .._run.agents import (
    AGENTS,
    find_agent,
    import_agent,
    import_env,
    is_path,
    name_of,
)
from .._run.config import (
    Population,
    Prior,
    Run,
    SkillSchedule,
    Training,
    read_config,
    read_schedule,
)
from .._run.files import checkpoints_folder
from .._run.rewards import REWARDS, LearnerOptions
from .._run.write import SWEEP
from .._storage.checkpoint import saved_steps
from .._storage.files import __version__
from .._training.mesh import count_cores, make_devices, most_shares
from .._types.custom_types import Mode
from ..presets import Preset
from .arguments import (
    DISK_OPTIONS,
    OWN,
    POINT,
    POINT_OPTIONS,
    TRAINING,
    all_commands,
    command_type,
)


# Ranges in which the default networks learn something on small problems.
USUAL_PRIORS: tuple[Prior, ...] = (
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
    lengthens: bool = False

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            check_integer("checkpoint_every", self.checkpoint_every, least=1)


@dataclasses.dataclass(frozen=True)
class Train:
    """A run of `eqrl train`, `eqrl pbt` or `eqrl disk`, as its schedule says."""

    run: Run
    place: Place
    tensorboard: bool = False
    preset: Preset | None = dataclasses.field(default=None, compare=False)
    """The preset whose values are its defaults, if any."""
    lacks_preset: bool = dataclasses.field(default=False, compare=False)
    """Whether its defaults are the library's because no preset fits."""
    has_begun: bool = dataclasses.field(default=False, compare=False)
    """Whether it trained before, possibly on a machine with more devices."""


@dataclasses.dataclass(frozen=True)
class Resume:
    """Resume a run from its last checkpoint, also to train longer."""

    resume: Path
    """Folder of the run, from which all else is taken."""

    num_steps: int | None = None
    """Environment steps in total, for a run of `eqrl train`; by default unchanged."""

    num_generations: int | None = None
    """Generations in total, for a run of `eqrl pbt`; by default unchanged."""

    num_skills: int | None = None
    """Skills in total, for a run of `eqrl disk`; by default unchanged."""

    checkpoint_every: int | None = None
    """Environment steps between checkpoints, as of a new run."""

    tensorboard: bool = False
    """Write TensorBoard files into the folder, if the run is not a population."""

    agent: str | None = None
    """Class of a custom agent, as package.module:Class; a folder never imports it."""

    env: str | None = None
    """Function that makes a custom environment, likewise, as package.module:make."""


@dataclasses.dataclass(frozen=True)
class Rerun:
    """Repeat a run from its `config.json`, in a new folder."""

    source: tyro.conf.Positional[Path]
    """Folder of the run to repeat."""

    folder: Path | None = None
    """Folder of the new run; by default a new one in runs."""

    tensorboard: bool = False
    """Write TensorBoard files into the folder, if the run is not a population."""

    agent: str | None = None
    """Class of a custom agent, as package.module:Class; a folder never imports it."""

    env: str | None = None
    """Function that makes a custom environment, likewise, as package.module:make."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Play episodes with each policy of a run and print the returns."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run, or of a sweep, whose settings play with every seed."""

    num_episodes: int | None = None
    """Episodes of each policy; by default 64 of brax, Playground and simulators outside
    JAX, 1024 of other environments, and of a sweep as many as score each seed."""

    mode: Mode = "greedy"
    """How to choose actions: at random, sampled as in training, or greedily."""

    seed: int = 0
    """Seed of the episodes; the default repeats the final episodes of a run, while a
    sweep gets new ones."""

    output: Path | None = None
    """File to write with all returns: .json or .csv."""

    json: bool = False
    """Print JSON instead of a table."""

    agent: str | None = None
    """Class of a custom agent, as package.module:Class; a folder never imports it."""

    env: str | None = None
    """Function that makes a custom environment, likewise, as package.module:make."""


@dataclasses.dataclass(frozen=True)
class Render:
    """Play one greedy episode of a run and write what it looks like."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run, or of a sweep, whose best setting plays."""

    seed: int | None = None
    """Seed or member; by default 0, and of a population or a sweep the best."""

    skill: int | tuple[float, ...] | None = None
    """Skill to show: its number, from 0, or the elements of a vector."""

    output: Path | None = None
    """File to write: .html or .gif for brax; .png, .pdf or .svg for eqrl/Point; .gif
    for all others, or .mp4 for simulators and environments that draw themselves."""

    agent: str | None = None
    """Class of a custom agent, as package.module:Class; a folder never imports it."""

    env: str | None = None
    """Function that makes a custom environment, likewise, as package.module:make."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw the learning curves of runs into one figure."""

    folders: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="(required)"),
    ]
    """Folders of the runs, each of which becomes a curve; or that of a sweep."""

    output: Path = Path("learning_curves.png")
    """File to write, whose suffix decides the format: .png, .pdf or .svg."""

    metric: str | None = None
    """Column of metrics.csv; by default the return, of evaluations if all runs have
    them, and of skills the intrinsic reward."""

    center: Center | None = None
    """Mean or interquartile mean of the seeds; by default the mean, and for a sweep the
    one that it is ranked by."""

    interval: Interval = 0.95
    """Level of the bootstrap interval over seeds, in (0, 1]; or their range."""

    smoothing: int = 1
    """Rows of the metrics to average: each and those right before it."""

    logarithmic: tuple[LogarithmicAxis, ...] = ()
    """Axes that are logarithmic: x, of the steps, y, of the metric, or both."""

    title: str | None = None
    """Above the axes; by default agent and environment, if all runs have the same."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a policy of a run into one file, which `eqrl.load_policy` loads."""

    folder: tyro.conf.Positional[Path]
    """Folder of the run, or of a sweep, whose best setting is written."""

    output: Path
    """File to write."""

    seed: int | None = None
    """Seed or member; by default 0, and of a population or a sweep the best."""

    skill: int | tuple[float, ...] | None = None
    """Skill to export: its number, from 0, or the elements of a vector."""

    agent: str | None = None
    """Class of a custom agent, as package.module:Class; a folder never imports it."""

    env: str | None = None
    """Function that makes a custom environment, likewise, as package.module:make."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train many settings of hyperparameters, each from several seeds."""


@dataclasses.dataclass(frozen=True)
class Envs:
    """List the environments of the libraries that are installed."""

    pattern: tyro.conf.Positional[str] = ""
    """Part of their names, or a pattern of the whole, such as 'gymnasium/*-v5'."""

    sizes: bool = False
    """Describe more than 50 too, each of which may take a second to start."""


Command = Train | Evaluate | Render | Plot | Export | Envs


_OTHERS: dict[str, type] = {
    # Its options are in `run_sweep`, which parses them.
    "sweep": Sweep,
    "rerun": Rerun,
    "evaluate": Evaluate,
    "render": Render,
    "plot": Plot,
    "export": Export,
    "envs": Envs,
}


def parse(args: Sequence[str]) -> Command:
    """The command in `args`.

    Exits with 2 if there is none, with 0 after help and after the version.
    """
    if list(args) == ["--version"]:
        print(f"eqrl {__version__}")
        raise SystemExit(0)
    command = args[0] if args else ""
    if command in TRAINING:
        given = _look_ahead(args)
        if given.resume is not None:
            return _parse_resume(list(args))
        return _parse_training(command, list(args[1:]), given)
    if command not in _OTHERS:
        # This prints help or an error, and exits.
        return _parse_options(all_commands(_OTHERS), "eqrl", args)
    # Parsed alone, a command does not mention the options of others in its errors.
    options = _parse_options(_OTHERS[command], f"eqrl {command}", args[1:])
    if isinstance(options, Rerun):
        return _read_command(options.source, options, Place(options.folder))
    return options


def _parse_options(options: Any, prog: str, words: Sequence[str]) -> Any:
    return tyro.cli(
        options,
        prog=prog,
        description="Train, evaluate and render reinforcement learning agents. "
        "`eqrl --version` prints the version."
        if prog == "eqrl"
        else None,
        args=words,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _parse_training(
    command: str, words: list[str], given: argparse.Namespace
) -> Command:
    """The training that the words after `eqrl train`, `pbt` or `disk` describe."""
    # A command that trains has the options of its agent, so parsing needs its class.
    path: str | None = given.agent
    own = import_agent(path) if path is not None and is_path(path) else None
    own_env = import_env(given.env) if given.env and is_path(given.env) else None
    name = ""
    if command != "disk":
        first = words[0] if words else "--"
        if first.startswith("-") and first not in ("-h", "--help"):
            if given.agent is not None and own is None:
                own_name = given.agent if given.agent in AGENTS else "sac"
                raise ValueError(
                    f"`agent={given.agent!r}` must be written as "
                    "`package.module:Class`; an agent of eqrl's own is named without "
                    f"`--agent`: `eqrl {command} {own_name}`."
                )
            # Without a named agent, the default is the one that solves the environment.
            best = presets.best(given.env) if given.env is not None else None
            name = best.agent if best is not None and command == "train" else "sac"
            name = name if own is None else OWN
        elif first in {*AGENTS, *REWARDS, *([OWN] if own is not None else [])}:
            name = words.pop(0)
        elif first in ("-h", "--help"):
            return _parse_options(all_commands(_OTHERS), "eqrl", [command, *words])
        else:
            names = [*AGENTS, *REWARDS]
            near = difflib.get_close_matches(first.lower(), names, n=1)
            raise ValueError(
                f"There is no agent `{first}`"
                + (f"; did you mean `{near[0]}`?" if near else ".")
                + f" The agents are {', '.join(names)}, and your own is given by "
                "`--agent package.module:Class`."
            )
    is_within = name in ("", *REWARDS)
    # `Run` raises an error for an unknown name.
    learner = given.agent if given.agent in AGENTS else LearnerOptions.agent
    named = AGENTS[name] if name in AGENTS else find_agent(learner, own)
    preset = None if is_within else _find_preset(command, name, given)
    prog = " ".join(["eqrl", command, *([name] if name not in ("", OWN) else [])])
    options = _parse_options(
        command_type(command, name, named, preset, given.env), prog, words
    )
    run, output = make_run(options, own, own_env), options.output
    place = Place(
        output.folder,
        overwrite=output.overwrite,
        checkpoint_every=output.checkpoint_every,
    )
    if preset is not None:
        # The run's own options include it, for the number of steps that it trains.
        options = {x: y for x, y in preset.options.items() if x != "anneal_steps"}
        tell(f"by default the preset of {dataclasses.replace(preset, options=options)}")
    if is_within and run.settings.env == POINT:
        values = POINT_OPTIONS if name else DISK_OPTIONS
        # The defaults of a custom agent are its author's.
        names = dict(run.options).keys() - ({} if own is None else run.agent_options)
        listed = ", ".join(f"{x}={y}" for x, y in values.items() if x in names)
        tell(f"by default settings for short trainings of skills on {POINT}: {listed}")
    # `eqrl pbt` has no option for it.
    tensorboard = getattr(output, "tensorboard", False)
    return Train(run, place, tensorboard, preset, preset is None and name in AGENTS)


def _look_ahead(args: Sequence[str]) -> argparse.Namespace:
    """The options that decide which other options there are, and their defaults."""
    # tyro builds its parser from types that these options choose, so it comes too late.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--agent", "--env", "--backend", "--max-steps", "--num-steps"):
        parser.add_argument(name, nargs="?")
    parser.add_argument("--env-option", nargs="*")
    parser.add_argument("--resume", nargs="?", const="")
    # As tyro does: `--max_steps` is `--max-steps`, whatever its value after `=`.
    hyphenated = [
        re.sub("^--[^=]*", lambda name: name[0].replace("_", "-"), word)
        for word in args
    ]
    return parser.parse_known_args(hyphenated)[0]


def import_both(
    options: Resume | Rerun | Evaluate | Render | Export | argparse.Namespace,
) -> tuple[type[AnyAgent] | None, Callable[..., Any] | None]:
    """The class given with `--agent` and the function given with `--env`, if any."""
    agent_type = None if options.agent is None else import_agent(options.agent)
    return agent_type, None if options.env is None else import_env(options.env)


def _parse_resume(args: list[str]) -> Train:
    """The run that `eqrl train --resume FOLDER`, `pbt` or `disk` resumes."""
    command_name, *words = args
    agent_name = None if words[0].startswith("-") else words.pop(0)
    options, rest = tyro.cli(
        Resume,
        prog=f"eqrl {command_name}",
        args=words,
        config=(tyro.conf.OmitArgPrefixes,),
        return_unknown_args=True,
    )
    folder = options.resume
    if rest:
        raise ValueError(
            f"`--resume {folder}` takes the settings of the run from the folder; leave "
            f"out `{shlex.join(rest)}`. A new run begins with `eqrl {command_name} "
            "AGENT` and its settings, which `config.json` there holds."
        )
    place = Place(folder, resume=True, checkpoint_every=options.checkpoint_every)
    command = _read_command(folder, options, place)
    run = command.run
    name, agent = run.schedule.command, run.agent
    trained = None
    if agent_name is not None and agent_name not in (agent, OWN):
        trained = f"`{agent}`, not of `{agent_name}`"
    elif name != command_name:
        trained = f"`eqrl {name}`"
    if trained is not None:
        raise ValueError(
            f"`{folder}` is a run of {trained}; resume it by `{run.resuming(folder)}`."
        )
    for other in (Training, Population, SkillSchedule):
        if other.command != name and getattr(options, other.length) is not None:
            raise ValueError(
                f"`{other.length}` is the length of a run of `eqrl {other.command}`; "
                f"for `{folder}` give `--{run.schedule.length.replace('_', '-')}`."
            )
    length = getattr(options, run.schedule.length)
    if length is None:
        return command
    if name == "train":
        length = _rounded_up("num_steps", length, run.trainer_options)
    has_ended = (
        name != "train"
        or max(saved_steps(checkpoints_folder(folder)), default=0)
        >= run.schedule.num_steps
    )
    return dataclasses.replace(
        command,
        run=run.lengthened(length, has_ended=has_ended),
        place=dataclasses.replace(place, lengthens=True),
    )


def _read_command(source: Path, options: Resume | Rerun, place: Place) -> Train:
    """The command that trained the run in the folder `source`."""
    if (source / SWEEP).exists():
        raise ValueError(
            f"`{source}` is the folder of a sweep, which `eqrl sweep --resume` resumes "
            "and `eqrl evaluate`, `plot`, `render` and `export` read."
        )
    # An agent's module may make arrays, after which JAX cannot make more devices.
    # Errors in the configuration are reported when all of it is read, which comes next.
    with contextlib.suppress(ValueError):
        make_devices_for(read_schedule(source))
    run = read_config(source, *import_both(options))
    if options.tensorboard and isinstance(run.schedule, Population):
        raise ValueError(
            f"`--tensorboard` is for runs of seeds, and `{source}` is a population; "
            "leave it out."
        )
    return Train(run, place, options.tensorboard, has_begun=True)


def make_devices_for(schedule: Training | Population | SkillSchedule) -> None:
    """Makes devices of the processor's cores, as many as the schedule can use.

    A number that the user has set for JAX takes precedence, and so do devices that JAX
    has already made.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    is_set = "--xla_force_host_platform_device_count" in flags
    # Skills are learned one after another, on one device.
    if is_set or isinstance(schedule, SkillSchedule):
        return
    if jax.config.values["jax_num_cpu_devices"] >= 0:
        return
    number = schedule.devices
    if number is None and schedule.members != "together":
        number = most_shares(schedule.count, count_cores())
    if number is not None and number > 1:
        make_devices(number)


def make_run(
    options: Any, own: type[AnyAgent] | None, own_env: Callable[..., Any] | None
) -> Run:
    """The run that the parsed options of one command describe."""
    schedule, reward = options.schedule, getattr(options, "reward", None)
    is_disk = isinstance(schedule, SkillSchedule)
    name = options.learner.agent if is_disk else options.name
    # Within an intrinsic reward, the agent of the run is that reward.
    learner = None if is_disk else getattr(options, "learner", None)
    if own is not None and learner is None:
        name = name_of(own)
    if own is not None and learner is not None:
        learner = dataclasses.replace(learner, agent=name_of(own))
    settings = options.settings
    if own_env is not None:
        settings = dataclasses.replace(settings, env=name_of(own_env))
    priors: tuple[Prior, ...] = ()
    if isinstance(schedule, Population):
        names = vars(options.agent)
        usual = tuple(prior for prior in USUAL_PRIORS if prior[0] in names)
        priors = options.priors.prior or usual
        if not priors:
            raise ValueError(
                "This agent has none of "
                + ", ".join(f"`{name}`" for name, *_ in USUAL_PRIORS)
                + " to vary; name others, as `--prior NAME KIND LOW HIGH`."
            )
    trainer_options = dataclasses.asdict(options.trainer)
    agent_options = dataclasses.asdict(options.agent)
    is_population = isinstance(schedule, Population)
    steps = "steps_per_generation" if is_population else "num_steps"
    whole = _rounded_up(steps, getattr(schedule, steps), trainer_options)
    # A rate that is annealed over the whole training ends with it.
    if agent_options.get("anneal_steps") == getattr(schedule, steps):
        agent_options["anneal_steps"] = float(whole)
    return Run(
        agent=name,
        agent_options=agent_options,
        trainer_options=trainer_options,
        settings=settings,
        schedule=dataclasses.replace(schedule, **{steps: whole}),
        learner=learner,
        skills=getattr(options, "skills", None),
        priors=priors,
        reward_options={} if reward is None else dataclasses.asdict(reward),
        agent_type=own,
        env_options=options.env_options.env_option,
        make_own_env=own_env,
    )


def _rounded_up(name: str, given: int, trainer_options: Mapping[str, Any]) -> int:
    """Rounds environment steps up to whole iterations, and prints any change."""
    size = trainer_options["num_envs"] * trainer_options["steps_per_iteration"]
    if size < 1 or given % size == 0:
        return given
    num_steps = (given // size + 1) * size
    tell(
        f"`{name}={given}` is rounded up to {num_steps}, a whole number of iterations "
        f"of {size} environment steps each"
    )
    return num_steps


def tell(line: str) -> None:
    """Writes to standard output; that it is closed ends no training."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _find_preset(command: str, agent: str, given: argparse.Namespace) -> Preset | None:
    """The preset of the agent and the environment of a command, if any."""
    if agent not in AGENTS:
        return None
    preset = presets.find(agent, given.env or AGENTS[agent].env)
    # Presets hold for their backend, time limit and parameters of the task only.
    is_another = given.max_steps is not None or given.env_option is not None
    if preset is None or is_another:
        return None
    if given.backend not in (None, preset.backend):
        return None
    options = dict(preset.options)
    if "anneal_steps" in options:
        del options["anneal_steps"]
        # Annealing lasts for the whole training, so it follows the number of steps. A
        # population varies the rate itself.
        if command == "train":
            # tyro reports an invalid number.
            with contextlib.suppress(ValueError):
                num_steps = given.num_steps or preset.num_steps
                options["anneal_steps"] = float(int(num_steps))
    return dataclasses.replace(preset, options=options)
