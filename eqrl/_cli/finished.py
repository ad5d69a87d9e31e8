"""The commands that read a finished run: evaluate, plot, render and export."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from .._agents.base import AnyAgent
from .._agents.wrappers.fixed_skill import fix_skill
from .._agents.wrappers.skills import prior_of
from .._interaction.evaluate import evaluate
from .._interaction.export import export_policy
from .._reporting.episodes import render, render_suffix
from .._reporting.figure import figure_suffix, one_of
from .._reporting.learning_curve import default_metric, draw_facets
from .._reporting.statistics import bootstrap_interval, center_of
from .._run.config import (
    Population,
    SkillSchedule,
    check_seed,
    read_config,
    read_title,
)
from .._run.files import finite
from .._run.load import (
    best_policy,
    check_has_policies,
    count_policies,
    load_run,
    read_summary,
)
from .._run.rewards import skill_of
from .._run.write import read_metrics
from .._storage.files import atomic_write
from .._training.rows import History
from .._types.custom_types import Mode
from ..envs._base import AnyEnv
from ..envs._host import is_host
from .commands import Evaluate, Export, Plot, Render, import_both


def num_episodes_of(name: str, env: AnyEnv) -> int:
    """Number of episodes to evaluate each policy at the end of training.

    The random starting states move the mean return of 64 episodes of Pendulum-v1 by
    about 10. A step of brax or Playground costs about a thousand times as much as one
    of another environment, and a simulator outside JAX may cost as much.
    """
    is_costly = name.startswith(("brax/", "playground/")) or is_host(env)
    return 64 if is_costly else 1_024


def evaluation_key(seed: int) -> PRNGKeyArray:
    """The key of evaluations, which no training derives from any seed."""
    check_seed(seed)
    return jr.split(jr.key(seed))[1]


def evaluation_env(env: AnyEnv) -> AnyEnv:
    """The environment of evaluations; for Atari, with whole games and true rewards."""
    if not is_host(env):
        return env
    # It needs Gymnasium, which is installed if there is such an environment.
    from ..envs._envpool import in_whole_games

    return in_whole_games(env)


WHOLE_GAMES = "of whole games with rewards that are not clipped"


def returns_of_policies(
    policies: Sequence[tuple[AnyAgent, PyTree]],
    env: AnyEnv,
    *,
    num_episodes: int,
    mode: Mode,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "policies episodes"]:
    """Returns of episodes with each agent and its state."""
    returns = []
    for index, (agent, state) in enumerate(policies):
        evaluation = evaluate(
            agent,
            state,
            env,
            num_episodes=num_episodes,
            mode=mode,
            key=jr.fold_in(key, index),
        )
        returns.append(np.asarray(evaluation.returns))
    return np.stack(returns)


_TABLES = (".json", ".csv")

Chosen = tuple[str, tuple[AnyAgent, PyTree, AnyEnv]]
"""A policy: its name, as in `seed 0, skill 3`, its agent, state and environment."""


def run_evaluate(command: Evaluate) -> int:
    """Prints statistics of the returns of each policy of a run."""
    if command.output is not None and command.output.suffix.lower() not in _TABLES:
        raise ValueError(
            f"`output={str(command.output)!r}` must end in {one_of(_TABLES)}."
        )
    agent_type, make_env = import_both(command)
    run = read_config(command.folder, agent_type, make_env)
    schedule = run.schedule
    loaded = [
        load_run(command.folder, index, agent_type=agent_type, make_env=make_env)
        for index in range(count_policies(command.folder, run))
    ]
    if not loaded:
        raise ValueError(f"There is no {schedule.kind} in `{command.folder}` yet.")
    _, _, trained_in = loaded[0]
    env = evaluation_env(trained_in)
    num_episodes = command.num_episodes
    if num_episodes is None:
        num_episodes = num_episodes_of(run.settings.env, env)
    returns = returns_of_policies(
        [(agent, state) for agent, state, _ in loaded],
        env,
        num_episodes=num_episodes,
        mode=command.mode,
        key=evaluation_key(command.seed),
    )
    summary = _summary(schedule.kind, returns, command)
    if command.output is not None:
        with atomic_write(command.output) as path:
            if command.output.suffix.lower() == ".json":
                path.write_text(f"{json.dumps(summary, indent=2)}\n")
            else:
                rows = [f"{schedule.kind},episode,return"]
                for index, row in enumerate(returns):
                    numbered = enumerate(row.tolist())
                    rows += [f"{index},{episode},{x}" for episode, x in numbered]
                path.write_text("\n".join([*rows, ""]))
    if command.json:
        print(json.dumps(summary))
        return 0
    whole = "" if env is trained_in else f" {WHOLE_GAMES}"
    print(f"returns of {num_episodes} episodes{whole}, {command.mode}:")
    width = len(schedule.kind)
    print(f"{schedule.kind}       mean        std        min        max")
    for index, row in enumerate(returns):
        numbers = (row.mean(), row.std(), row.min(), row.max())
        columns = " ".join(f"{number:10.2f}" for number in numbers)
        print(f"{index:{width}d} {columns}")
    if summary.get("mean") is not None:
        is_known = np.isfinite(returns).all(axis=1)
        some = "" if is_known.all() else f"{is_known.sum()} of "
        text = f"over {some}{len(returns)} seeds: {summary['mean']:.2f}"
        # One value has no interval.
        if is_known.sum() > 1:
            low, high = summary["interval"]
            text += f", 95 % bootstrap interval {low:.2f} to {high:.2f}"
        print(text)
    return 0


def _summary(
    kind: str, returns: Float[np.ndarray, "policies episodes"], command: Evaluate
) -> dict[str, Any]:
    """The returns and, for several seeds, the mean with a bootstrap interval.

    Seeds with a return that is not finite are in neither.
    """
    means = returns.mean(axis=1)
    summary: dict[str, Any] = {
        "kind": kind,
        "mode": command.mode,
        "seed": command.seed,
        "num_episodes": returns.shape[1],
        "mean_returns": finite(means),
        "returns": [finite(row) for row in returns],
    }
    # Members copy each other, and skills differ on purpose.
    if kind == "seed" and len(means) > 1:
        known = np.where(np.isfinite(means), means, np.nan)
        (mean,) = finite(center_of(known[None], "mean"))
        ends = np.stack(bootstrap_interval(known, level=0.95))
        summary |= {"mean": mean, "interval": finite(ends)}
    return summary


def run_plot(command: Plot) -> int:
    """Draws the learning curves of runs into one figure.

    Without a title, each environment has its own axes.
    """
    if not command.folders:
        raise ValueError("No folder is given; `folders` are those of runs.")
    # A wrong suffix is an error before any file is read.
    figure_suffix(command.output)
    summaries = [read_summary(folder) for folder in command.folders]
    title, labels = _title_and_labels(
        command.folders, [title for title, _ in summaries]
    )
    are_populations = all(kind == "member" for _, kind in summaries)
    center, runs = command.center or "mean", {}
    for folder, label, (_, kind) in zip(
        command.folders, labels, summaries, strict=True
    ):
        metrics = read_metrics(folder)
        if len(metrics["step"]) == 0:
            raise ValueError(
                f"`{folder}` has no rows of metrics yet; leave it out, or train longer."
            )
        if kind == "member" and not are_populations:
            # Members copy each other, so unlike the spread of seeds beside it, theirs
            # does not predict another population.
            metrics = {
                name: center_of(values, center) if values.ndim == 2 else values
                for name, values in metrics.items()
            }
        runs[label] = metrics
    metric = command.metric
    if metric is None:
        metric = default_metric(list(runs.values()))
    for folder, run in zip(command.folders, runs.values(), strict=True):
        if metric not in run:
            names = ", ".join(sorted(run.keys() - {"step", "skill"}))
            raise ValueError(f"`{folder}` has no metric `{metric}`; it has {names}.")
    names = None
    if not are_populations and any(kind == "member" for _, kind in summaries):
        along = "environment steps of each seed or member"
        names = (along, metric.replace("_", " "))
    facets: dict[str, dict[str, History]] = {}
    for (label, run), (full, _) in zip(runs.items(), summaries, strict=True):
        # Titles are as in "SAC on gymnax/Pendulum-v1", unless they were given. Names of
        # environments are one word.
        _, _, env = full.rpartition(" on ")
        is_given = env == full or " " in env
        name = label if is_given else label.removesuffix(f" on {env}")
        facets.setdefault("" if is_given else env, {})[name] = run
    if len(facets) == 1 or "" in facets or command.title is not None:
        facets = {title if command.title is None else command.title: runs}
    draw_facets(
        command.output,
        facets,
        metric=metric,
        center=center,
        interval=command.interval,
        smoothing=command.smoothing,
        logarithmic=command.logarithmic,
        kind="member" if are_populations else "seed",
        names=names,
    )
    print(command.output)
    return 0


def _title_and_labels(
    folders: Sequence[Path], titles: list[str]
) -> tuple[str, list[str]]:
    """A title that the runs share, and a label for each."""
    names = [folder.resolve().name for folder in folders]
    # Agent and environment are clearer than a folder, if they tell all runs apart.
    if len(folders) > 1 and len(set(titles)) == len(titles):
        return "", titles
    title = titles[0] if len(set(titles)) == 1 else ""
    paths = [str(folder) for folder in folders]
    for labels in (names, paths):
        if len(set(labels)) == len(labels):
            return title, labels
    (twice, *_) = [path for path in paths if paths.count(path) > 1]
    raise ValueError(f"`{twice}` is given twice; name each run once.")


def run_render(command: Render, chosen: Chosen) -> int:
    """Writes a picture, an animation or a page of one episode."""
    name, (agent, state, env) = chosen
    path = command.output
    if path is None:
        words = name.replace(",", "").replace(" ", "_")
        path = command.folder / f"episode_of_{words}{render_suffix(env)}"
    title = f"{read_title(command.folder)}, {name}"
    render(agent, state, evaluation_env(env), path, key=jr.key(0), title=title)
    print(path)
    return 0


def chosen_policy(command: Render | Export) -> Chosen:
    """The policy of a run that a command names."""
    agent_type, make_env = import_both(command)
    run = read_config(command.folder, agent_type, make_env)
    if isinstance(run.schedule, Population):
        # Which one is the best is known at the end.
        check_has_policies(command.folder, run)
    index = best_policy(command.folder, run) if command.seed is None else command.seed
    skill = None
    if isinstance(run.schedule, SkillSchedule):
        if command.seed is not None:
            raise ValueError(
                f"`seed={command.seed}` is for seeds and members, but "
                f"`{command.folder}` holds skills; choose one by `--skill`."
            )
        index = 0 if command.skill is None else command.skill
        if not isinstance(index, int):
            raise ValueError(f"`skill={index}` must be the number of a skill, from 0.")
    elif command.skill is not None:
        skill = skill_of(prior_of(run.make_agent()), command.skill)
    agent, state, env = load_run(
        command.folder, index, agent_type=agent_type, make_env=make_env
    )
    name = f"{run.schedule.kind} {index}"
    if skill is not None:
        agent, state = fix_skill(agent, state, skill)
        given = command.skill
        elements = given if isinstance(given, tuple) else (given,)
        name = f"{name}, skill {' '.join(map(str, elements))}"
    return name, (agent, state, env)


def run_export(command: Export, chosen: Chosen) -> int:
    """Writes one policy of a run into one file."""
    _, (agent, state, env) = chosen
    export_policy(command.output, agent, state, env)
    print(command.output)
    return 0
