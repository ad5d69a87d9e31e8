"""The command `eqrl sweep`, and those that read the folder of a sweep."""

import argparse
import ast
import contextlib
import dataclasses
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

from .._agents.csf import CSF
from .._population.prior import make_settings, name_of_option
from .._population.train import check_scalar
from .._pytree.fields import check_integer
from .._pytree.tree import parts, take_element
from .._reporting.learning_curve import draw_learning_curves
from .._reporting.statistics import Center
from .._reporting.sweep import SweepSolution, draw_sweep
from .._run.config import (
    Population,
    Prior,
    Run,
    SkillSchedule,
    Training,
    read_config,
    read_schedule,
    read_title,
    select_tuned,
    write_config,
)
from .._run.files import CONFIG, claim_folder, new_folder, write_json
from .._run.sweep import group_settings, sweep
from .._run.write import SEARCH, SWEEP, TABLE, best_curves, read_sweep
from .._storage.files import Content, read_json
from .._training.host_loop import TrainingInterrupted
from .._training.mesh import choose_members, count_cores
from .commands import (
    USUAL_PRIORS,
    Evaluate,
    Export,
    Place,
    Plot,
    Render,
    Train,
    import_both,
    make_devices_for,
    parse,
    tell,
)
from .finished import (
    WHOLE_GAMES,
    Chosen,
    evaluation_env,
    evaluation_key,
    returns_of_policies,
)
from .training import Reporter, say, warn_without_reward


_HELP = """Train many settings of hyperparameters, each from several seeds.

  eqrl sweep ppo --env gymnax/CartPole-v1 --grid lr 1e-4 1e-3 --grid num_epochs 4 8
  eqrl sweep sac --random 20 --prior actor_lr loguniform 1e-4 1e-2 --seeds 4
  eqrl sweep --resume FOLDER

All options of `eqrl train` but --tensorboard and those of evaluations apply too,
such as --num-steps, --folder and --members; `eqrl train ppo --help` lists them
for ppo."""


@dataclasses.dataclass(frozen=True)
class Search:
    """The arguments of `sweep` besides those of its run; `search.json` holds them."""

    grid: dict[str, list[str]]
    priors: list[Prior]
    num_draws: int | None
    num_fresh_seeds: int
    num_episodes: int
    center: Center
    members_at_once: int | None
    checkpoint_every: int | None


def run_sweep(args: Sequence[str]) -> int:
    """Trains a sweep, or resumes one, and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="eqrl sweep",
        usage="eqrl sweep [AGENT] [OPTIONS]",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, option in _OPTIONS.items():
        parser.add_argument(name, **option)
    # As in `eqrl train`, `--fresh_seeds` is `--fresh-seeds`.
    words = [
        re.sub("^--[^=]*", lambda name: name[0].replace("_", "-"), word)
        for word in args
    ]
    # `argparse` takes `-1e-3` for an option, but no word that begins with a space.
    spaced = [re.sub(r"^(?=-\.?\d)", " ", word) for word in words]
    options, rest = parser.parse_known_args(spaced)
    rest = [word.removeprefix(" ") for word in rest]
    own = {"--agent": options.agent, "--env": options.env}
    if options.resume is not None:
        # Options that are not given keep what a namespace has.
        blank = argparse.Namespace(**dict.fromkeys(vars(options)))
        typed, _ = parser.parse_known_args(spaced, blank)
        others = {name for name, value in vars(typed).items() if value is not None}
        if rest or others - {"resume", "agent", "env"}:
            raise ValueError(
                f"`--resume {options.resume}` takes all else from the folder, so that "
                "all other options but `--agent` and `--env`, if they are your own, "
                "must be left out."
            )
        return _train(options.resume, *_read(options.resume, options))
    words = ["train", *rest, "--seeds", str(options.seeds)]
    for name, path in own.items():
        words += [] if path is None else [name, path]
    command = parse(words)
    assert isinstance(command, Train)
    if command.tensorboard:
        raise ValueError(
            "`--tensorboard` is for `eqrl train`; leave it out of a sweep."
        )
    run, place = command.run, command.place
    for option in ("--evaluate-every", "--evaluation-episodes"):
        if any(word.split("=")[0] == option for word in rest):
            raise ValueError(
                f"`{option}` is for `eqrl train`; a sweep evaluates each seed after its"
                " training, in `--num-episodes` episodes."
            )
    return _begin(run, _make_search(options, run, place.checkpoint_every), place)


def _make_search(
    options: argparse.Namespace, run: Run[Training], checkpoint_every: int | None
) -> Search:
    """The variations of a sweep, as its options describe them."""
    priors: list[Prior] = []
    for name, kind, *bounds in options.prior:
        try:
            low, high = map(float, bounds)
        except ValueError as error:
            raise ValueError(
                f"`--prior {name} {kind} {' '.join(bounds)}` must end in two numbers, "
                "the least and the greatest value."
            ) from error
        priors.append((name.replace("-", "_"), kind, low, high))
    if priors and options.random is None:
        raise ValueError(
            "`--prior` says what to draw; say how often by `--random DRAWS`."
        )
    if parts(run.make_agent(), CSF):
        raise ValueError(
            "`csf` learns skills without a reward, so that returns cannot rank its "
            "settings; give `eqrl.sweep` a `score` of your own."
        )
    if run.skills is not None:
        raise ValueError(
            "`eqrl sweep` compares returns, which are not all that skills learn from; "
            "give `eqrl.sweep` a `score`, for their rewards `eqrl.diversity_return`."
        )
    for name, least in _LEAST.items():
        if (value := getattr(options, name)) is not None:
            check_integer(name, value, least=least)
    grid: dict[str, list[str]] = {}
    for name, *values in options.grid:
        grid.setdefault(name.replace("-", "_"), []).extend(values)
    if options.random is not None and not priors:
        names = run.agent_options.keys() - grid.keys()
        priors = [prior for prior in USUAL_PRIORS if prior[0] in names]
    if not grid and not priors:
        raise ValueError(
            "Nothing varies in this sweep; give `--grid NAME VALUE ...` or `--random "
            "DRAWS`. `eqrl train --seeds` trains one setting with several seeds."
        )
    return Search(
        grid=grid,
        priors=priors,
        num_draws=options.random,
        num_fresh_seeds=options.fresh_seeds,
        num_episodes=options.num_episodes,
        center=options.center,
        members_at_once=options.members_at_once,
        checkpoint_every=checkpoint_every,
    )


def _begin(run: Run[Training], search: Search, place: Place) -> int:
    """Trains a sweep in a new folder, and returns the exit code."""
    schedule = run.schedule
    _make_devices(schedule)
    in_turn = choose_members(schedule.members, None) == "in_turn"
    is_divided = in_turn and jax.default_backend() == "cpu"
    used = len(jax.devices()) if is_divided else 1
    if schedule.devices not in (None, used):
        raise ValueError(
            f"`devices={schedule.devices}` must be {used}, the number of devices that "
            "this sweep trains on: those of the processor if seeds run in turn on it, "
            "otherwise one. Leave it out."
        )
    env = run.make_env()
    # Checked first, so that a sweep that is refused does not overwrite anything.
    check_scalar(env)
    settings = make_settings(
        run.make_agent(),
        run.make_trainer(),
        **_varied(run, search),
        num_draws=search.num_draws,
        key=jr.key(0),
    )
    group_settings(settings, env, schedule.num_steps)
    folder = place.folder or new_folder(f"sweep-{run.name}")
    try:
        with claim_folder(folder, overwrite=place.overwrite, again=True):
            write_config(folder, run)
            write_json(folder, SEARCH, dataclasses.asdict(search))
            try:
                return _train(folder, run, search)
            finally:
                # A sweep that is refused leaves a folder that can be used again.
                if not (folder / SWEEP).exists():
                    (folder / CONFIG).unlink()
                    (folder / SEARCH).unlink()
    finally:
        if place.folder is None and not (folder / SWEEP).exists():
            shutil.rmtree(folder)


# The least allowed numbers, by the names of their options.
_LEAST = {
    "random": 1,
    "seeds": 1,
    "fresh_seeds": 0,
    "num_episodes": 1,
    "members_at_once": 1,
}

# By name, as `argparse` takes them.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--grid": {
        "nargs": "+",
        "type": str.strip,
        "action": "append",
        "default": [],
        "metavar": ("NAME", "VALUE"),
        "help": "A hyperparameter of the agent or the trainer and its values; once for "
        "each. All combinations are trained.",
    },
    "--prior": {
        "nargs": 4,
        "action": "append",
        "default": [],
        "metavar": ("NAME", "KIND", "LOW", "HIGH"),
        "help": "A hyperparameter to draw, as of eqrl pbt: uniform, loguniform, "
        "oneminus-uniform or oneminus-loguniform, and two bounds.",
    },
    "--random": {
        "type": int,
        "metavar": "DRAWS",
        "help": "Number of settings to draw; without --prior, learning rates and the "
        "discount vary.",
    },
    "--seeds": {"type": int, "default": 4, "help": "Seeds of each setting: 4."},
    "--fresh-seeds": {
        "type": int,
        "default": 0,
        "help": "Seeds from which to train the best setting again; by default none: "
        "its policies play fresh episodes.",
    },
    "--num-episodes": {
        "type": int,
        "default": 64,
        "help": "Greedy episodes that score each seed: 64.",
    },
    "--center": {
        "choices": ("iqm", "mean"),
        "default": "iqm",
        "help": "Statistic that ranks settings: iqm.",
    },
    "--members-at-once": {
        "type": int,
        "help": "Seeds of all settings that one call trains; by default what fits a "
        "quarter of the memory.",
    },
    "--resume": {"type": Path, "help": "Folder of a sweep that was stopped or killed."},
    "--agent": {"help": "Class of the agent, if it is one of your own."},
    "--env": {"help": "Environment, as of eqrl train."},
}


def _read(
    folder: Path, options: argparse.Namespace | Evaluate | Render | Export
) -> tuple[Run[Training], Search]:
    """The run that all settings have in common, and the search over the rest.

    `options` names a custom agent and environment, if there are any.
    """
    if not (folder / SEARCH).exists():
        raise ValueError(
            f"`{folder}` holds no sweep of the command line: there is no `{SEARCH}` in "
            "it. One of `eqrl.sweep` is resumed by the same call, and a run by `eqrl "
            "train --resume`."
        )
    # An agent makes arrays, after which JAX cannot make more devices.
    with contextlib.suppress(ValueError):
        _make_devices(read_schedule(folder))
    run = read_config(folder, *import_both(options))

    def parse_search(content: Content) -> Search:
        priors = [tuple(prior) for prior in content.pop("priors")]
        return Search(priors=priors, **content)

    return run, read_json(folder / SEARCH, parse_search, "begin the sweep anew")


def _make_devices(schedule: Training | Population | SkillSchedule) -> None:
    """Makes devices for the seeds of all settings, which share them."""
    if isinstance(schedule, Training):
        make_devices_for(dataclasses.replace(schedule, seeds=count_cores()))


def _train(folder: Path, run: Run[Training], search: Search) -> int:
    names = ", ".join([*search.grid, *(name for name, *_ in search.priors)])
    # Its seeds are evaluated once, with another option's number of episodes.
    unused = f", evaluation_episodes={run.schedule.evaluation_episodes}"
    tell(
        f"settings of {str(run).replace(unused, '')}; each of the sweep has its own "
        f"{names}; num_episodes={search.num_episodes}, center={search.center}, "
        f"num_fresh_seeds={search.num_fresh_seeds}"
    )
    try:
        solution = _sweep(folder, run, search)
    except TrainingInterrupted as error:
        say(
            "The sweep was interrupted; what was reached is kept, and "
            f"`{run.resuming(folder, command='sweep')}` resumes it."
        )
        return 128 + error.signal
    tell(f"{solution}\nfolder: {folder}")
    returns = {
        f"episode_return_{index}": metrics["episode_return"]
        for index, metrics in enumerate(solution.metrics)
        if "episode_return" in metrics
    }
    warn_without_reward(returns, solution.scores)
    if solution.best is None:
        say("All seeds of all settings diverged; lower the learning rates.")
        return 1
    return 0


def _varied(run: Run[Training], search: Search) -> dict[str, Any]:
    """The arguments `grid` and `priors` of `eqrl.sweep`."""
    agent = run.make_agent()
    _, priors = select_tuned(agent, search.priors)
    names = [name_of_option(agent, name) for name, *_ in search.priors]
    grid: dict[str, list[object]] = {}
    for name, texts in search.grid.items():
        values: list[object] = [*texts]
        for index, text in enumerate(texts):
            # A Python number, bool, `None` or tuple; anything else is text.
            with contextlib.suppress(SyntaxError, ValueError):
                values[index] = ast.literal_eval(text)
        # A name and its whole path are the same hyperparameter.
        grid.setdefault(name_of_option(agent, name), []).extend(values)
    return {"grid": grid, "priors": dict(zip(names, priors, strict=True))}


def _sweep(folder: Path, run: Run[Training], search: Search) -> SweepSolution:
    schedule = run.schedule
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _SECONDS_BETWEEN_LINES or done == total:
            last = now
            print(f"{done} of {total} steps, {100 * done // total} %", flush=True)

    env = run.make_env()
    whole = evaluation_env(env)
    if whole is not env:
        tell(f"Evaluations are {WHOLE_GAMES}.")
    return sweep(
        run.make_agent(),
        env,
        run.make_trainer(),
        num_seeds=schedule.seeds,
        num_steps=schedule.num_steps,
        key=jr.split(jr.key(run.settings.seed))[0],
        log_every=schedule.log_every,
        evaluation_env=whole,
        folder=folder,
        members=schedule.members,
        progress=Reporter("The progress", report),
        **(dataclasses.asdict(search) | _varied(run, search)),
    )


_SECONDS_BETWEEN_LINES = 10.0


def is_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep."""
    return (folder / SWEEP).is_file()


def _ended(
    command: Evaluate | Render | Export,
) -> tuple[Run[Training], Search, SweepSolution]:
    """The sweep in the folder of a command, and its results."""
    folder = command.folder
    run, search = _read(folder, command)
    if not (folder / TABLE).exists():
        raise ValueError(
            f"The sweep in `{folder}` has not ended; "
            f"`{run.resuming(folder, command='sweep')}` resumes it."
        )
    return run, search, _sweep(folder, run, search)


def policy_of_sweep(command: Render | Export) -> Chosen:
    """The policy of one seed of the best setting, by default of the best seed."""
    if command.skill is not None:
        raise ValueError(
            f"`skill={command.skill}` is for runs of skills; leave it out."
        )
    run, _, solution = _ended(command)
    best, seed, count = solution.best, command.seed, run.schedule.seeds
    if best is None:
        raise ValueError(f"All seeds of all settings in `{command.folder}` diverged.")
    if seed is None:
        seed = int(np.nanargmax(solution.scores[best]))
    if not 0 <= seed < count:
        raise ValueError(f"`seed={seed}` is not among the seeds, 0 to {count - 1}.")
    say(f"the best setting is {best}, {solution.labels[best]}; this is its seed {seed}")
    policy = (solution.agents[best], take_element(solution.states[best], seed))
    return f"setting {best}, seed {seed}", (*policy, run.make_env())


def evaluate_sweep(command: Evaluate) -> int:
    """Prints statistics of the returns of each seed of each setting."""
    if command.output is not None or command.json:
        raise ValueError(
            "`--output` and `--json` are for runs; leave them out, or read the table "
            f"of this sweep, `{command.folder / TABLE}`."
        )
    run, search, solution = _ended(command)
    num_episodes = command.num_episodes
    if num_episodes is None:
        num_episodes = search.num_episodes
    check_integer("num_episodes", num_episodes, least=1)
    print(f"returns of {num_episodes} episodes, {command.mode}:")
    print("setting seed       mean        std        min        max")
    for index, (agent, states) in enumerate(
        zip(solution.agents, solution.states, strict=True)
    ):
        returns = returns_of_policies(
            [(agent, take_element(states, x)) for x in range(run.schedule.seeds)],
            evaluation_env(run.make_env()),
            num_episodes=num_episodes,
            mode=command.mode,
            key=jr.fold_in(evaluation_key(command.seed), index),
        )
        for seed, row in enumerate(returns):
            numbers = (row.mean(), row.std(), row.min(), row.max())
            columns = " ".join(f"{number:10.2f}" for number in numbers)
            lost = "  diverged" if np.isnan(solution.scores[index, seed]) else ""
            print(f"{index:7d} {seed:4d} {columns}{lost}")
    for index, label in enumerate(solution.labels):
        print(f"setting {index}: {label}")
    return 0


def plot_sweep(command: Plot) -> int:
    """Draws the learning curves of the settings of a sweep, and their scores."""
    if len(command.folders) > 1:
        raise ValueError("A sweep is drawn alone; give its folder only.")
    [folder], output = [*command.folders], command.output
    solution = read_sweep(folder)
    curves, which = best_curves(solution)
    title = command.title
    if title is None:
        title = read_title(folder) if (folder / CONFIG).exists() else ""
    draw_learning_curves(
        output,
        curves,
        metric="episode_return" if command.metric is None else command.metric,
        center=command.center or solution.center,
        interval=command.interval,
        smoothing=command.smoothing,
        logarithmic=command.logarithmic,
        title=": ".join(filter(None, (title, which))),
    )
    scores = output.with_name(f"{output.stem}_scores{output.suffix}")
    draw_sweep(scores, solution, title=title)
    print(output)
    print(scores)
    return 0
