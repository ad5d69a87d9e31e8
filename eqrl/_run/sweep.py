"""Sweeps: many settings of hyperparameters, each trained from several seeds."""

import contextlib
import dataclasses
import itertools
import math
import operator
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from .._agents.base import AgentOfKind, AnyAgent
from .._interaction.evaluate_skills import Score, mean_return
from .._interaction.fit import check_numbers
from .._population.prior import AbstractPrior, check_prior
from .._population.solution import Agents
from .._population.train import check_scalar
from .._pytree.arguments import checked
from .._pytree.fields import (
    NonNegativeInt,
    PositiveInt,
    Takes,
    check_choice,
    check_instance,
    range_of,
    reusable_key,
    shown,
)
from .._pytree.tree import is_array_shape, repeated
from .._reporting.learning_curve import draw_learning_curves, shown_metrics
from .._reporting.statistics import Center
from .._reporting.sweep import SweepSolution, as_cell, as_text, draw_sweep
from .._storage.checkpoint import (
    Directory,
    check_directory,
    restore_part,
    saved_steps,
)
from .._storage.files import LOCK, Content, locked, read_json
from .._training.evaluations import evaluate_members
from .._training.host_loop import (
    NonFiniteError,
    TrainingInterrupted,
    deferred_interrupt,
)
from .._training.mesh import (
    Members,
    choose_members,
    default_mesh,
    replicate,
    shard,
    to_host,
)
from .._training.rows import AnySolution, History
from .._training.train import jit_init, train_members
from .._training.trainer import Trainer
from .._types.custom_types import EnvState, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import play_if_asked
from .files import CONFIG, finite, save_policy, versions, write_json, write_picture
from .solutions import Checkpoints, load_solution, step_of


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting of the hyperparameters, by their names, and what it makes."""

    values: dict[str, object]
    agent: AnyAgent
    trainer: Trainer


Pair = tuple[int, int]
"""A member of a sweep: the indices of its setting and of its seed."""


@checked
def sweep(
    agent: AgentOfKind[State, Agents],
    env: AbstractEnv[EnvState],
    trainer: Trainer,
    *,
    num_seeds: PositiveInt,
    num_steps: int,
    key: PRNGKeyArray,
    grid: Mapping[str, Sequence[object]] | None = None,
    priors: Mapping[str, AbstractPrior] | None = None,
    num_draws: PositiveInt | None = None,
    num_fresh_seeds: NonNegativeInt = 0,
    log_every: PositiveInt = 1_000,
    num_episodes: PositiveInt = 64,
    score: Annotated[Score[State], Takes(("agent", "state", "evaluation"))]
    | None = None,
    center: Center = "iqm",
    folder: Directory | None = None,
    checkpoint_every: PositiveInt | None = None,
    members: Members | None = None,
    members_at_once: PositiveInt | None = None,
    progress: Annotated[Callable[[int, int], object], Takes(("done", "total"))]
    | None = None,
) -> SweepSolution[State, Agents]:
    """Trains each of many settings of hyperparameters from several seeds.

    ```python
    sweep = eqrl.sweep(
        eqrl.PPO(),
        env,
        trainer,
        grid={"lr": [1e-4, 1e-3], "num_epochs": [4, 8]},
        num_seeds=4,
        num_steps=100_352,
        key=jr.key(0),
    )
    print(sweep)
    ```

    A setting is what `train_seeds` gives for its agent with the same key: its seeds are
    those of all others, and so are the episodes that score them. Seeds of all settings
    that differ in numbers alone train side by side in one program; values that are
    compiled, such as sizes and choices, make a program each.

    **Arguments:**

    - `agent`, `env`, `trainer`: as of `train_seeds`, with all that the sweep leaves as
        it is.
    - `num_seeds`: of each setting.
    - `num_steps`: environment steps of each seed, whole iterations of each setting.
    - `key`: of the whole sweep; that of each training, of `train_seeds`.
    - `grid`: values by the names of hyperparameters; all combinations are trained. A
        name is any field of the agent, also within a wrapper or a factory, as
        `make_actor.hidden_sizes`, or of the trainer, as `trainer.batch_size`; its end
        suffices if no other path ends in it.
    - `priors`: by such names, of what is drawn at random instead. With a `grid`, all of
        its combinations are trained with each draw.
    - `num_draws`: how often to draw from the `priors`. A further draw leaves those
        before it as they are.
    - `num_fresh_seeds`: seeds from which the best setting is trained once more. By
        default its policies play fresh episodes only, which takes the luck of the
        episodes out of `fresh_scores`, but not that of the seeds.
    - `log_every`: as of `train_seeds`.
    - `num_episodes`: greedy episodes after training that score each seed.
    - `score`: as of `Evaluations`; by default the mean return.
    - `center`: by which settings are compared, `"mean"` or `"iqm"`.
    - `folder`: where to keep what is trained. If the process is killed, the same call
        resumes and gives the same table, bit for bit; nothing that was finished is
        trained again. At the end it holds `settings.csv` and figures.
    - `checkpoint_every`: environment steps of each seed between checkpoints into the
        `folder`; by default a minute.
    - `members`: how seeds run on each device, as in `train_seeds`.
    - `members_at_once`: how many seeds, of all settings together, train side by side.
        By default as many as fill a quarter of the memory of the device with their
        agents, environments and replays; the rest is left to a copy for checkpoints
        and to what an update needs, which is not estimated. Scores do not depend on
        it, bit for bit if seeds run in turn and else up to rounding.
    - `progress`: called as `progress(done, total)`, with environment steps of all
        settings and seeds, after each row of the metrics.

    **Returns:**

    A `SweepSolution`, in which a seed that diverged has the score `nan`.

    Raises a `ValueError` before the first step if a name, a value or the folder does
    not fit, and `TrainingInterrupted` as `train_seeds` does; the `folder` then holds
    all that was reached.
    """
    key = reusable_key(key)
    check_choice("center", center, ("mean", "iqm"))
    play_if_asked(env)
    if score is None:
        check_scalar(env)
    # Seeds derive keys from smaller numbers. Each purpose has a key of its own.
    own_key = jr.fold_in(key, 2**31 - 1)
    draw_key, evaluation_key, fresh_key, fresh_evaluation_key = jr.split(own_key, 4)
    single = cast(AnyAgent, agent)
    settings = make_settings(
        single, trainer, grid or {}, priors or {}, num_draws, key=draw_key
    )
    num_fresh = num_fresh_seeds or num_seeds
    plan = _Plan(
        settings=settings,
        env=env,
        num_seeds=num_seeds,
        num_fresh_seeds=num_fresh_seeds,
        num_steps=num_steps,
        log_every=log_every,
        num_episodes=num_episodes,
        score=mean_return if score is None else score,
        center=center,
        members=choose_members(members, None),
        at_once=members_at_once,
        folder=None if folder is None else Path(folder),
        checkpoint_every=checkpoint_every,
        progress=progress,
        keys=jnp.concatenate(
            [jr.split(key, num_seeds), jr.split(fresh_key, num_fresh)]
        ),
        evaluation_keys=jnp.concatenate(
            [
                jr.split(evaluation_key, num_seeds),
                jr.split(fresh_evaluation_key, num_fresh),
            ]
        ),
    )
    groups = plan.check()
    asked = {"agent": as_text(agent), "trainer": as_text(trainer)}
    with deferred_interrupt(), plan.opened(key, asked):
        parts = plan.load()
        for group in groups:
            parts += plan.train([*itertools.product(group, range(num_seeds))], parts)
        solution = plan.solution(parts)
        solution = dataclasses.replace(
            solution, fresh_scores=plan.fresh_scores(solution, parts)
        )
        if plan.folder is not None:
            write_sweep(plan.folder, solution)
    return cast(SweepSolution[State, Agents], solution)


def make_settings(
    agent: AnyAgent,
    trainer: Trainer,
    grid: Mapping[str, Sequence[object]],
    priors: Mapping[str, AbstractPrior],
    num_draws: int | None,
    *,
    key: PRNGKeyArray,
) -> list[Setting]:
    """All settings of a sweep, those of the first draw first.

    The arguments are those of `sweep`; `key` is of the draws.
    """
    if (num_draws is None) != (not priors):
        raise ValueError(
            f"`num_draws={num_draws}` and `priors` of {[*priors] or 'nothing'} do not "
            "fit: it is how often to draw from them, so give both or neither."
        )
    paths: dict[str, str] = {}
    for name in (*grid, *priors):
        path = find_path(agent, trainer, name)
        if path in paths.values():
            raise ValueError(f"`{path}` is given twice, the second time as `{name}`.")
        paths[name] = path
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable) or not [*values]:
            raise ValueError(
                f"`grid[{name!r}]={shown(values)}` must be a list of values, such as "
                "`[1e-4, 1e-3]`."
            )
    for name, prior in priors.items():
        check_instance(f"priors[{name!r}]", prior, AbstractPrior)
        owner, _, field = paths[name].rpartition(".")
        node = operator.attrgetter(owner)(agent) if owner else agent
        try:
            check_prior(field, prior, range_of(node, field))
        except ValueError as error:
            raise ValueError(f"The prior of `{name}` is wrong: {error}") from error
    draws: list[dict[str, object]] = [{}]
    if num_draws is not None:
        draws = [
            {
                name: float(str(np.asarray(prior.sample(key=each))))
                for each, (name, prior) in zip(
                    jr.split(jr.fold_in(key, index), len(priors)),
                    priors.items(),
                    strict=True,
                )
            }
            for index in range(num_draws)
        ]
    points = [
        dict(zip(grid, point, strict=True))
        for point in itertools.product(*grid.values())
    ]
    settings = []
    for draw, point in itertools.product(draws, points):
        values = {**point, **draw}
        try:
            changed = _changed(agent, trainer, {paths[x]: values[x] for x in values})
        except (TypeError, ValueError) as error:
            raise ValueError(f"The setting {values} is wrong: {error}") from error
        settings.append(Setting(values, *changed))
    return settings


def find_path(agent: AnyAgent, trainer: Trainer, name: str) -> str:
    """The path of the one field of the agent or the trainer that is or ends in `name`.

    Fields of the trainer begin with `trainer.`.
    """
    paths = [*_paths(agent), *(f"{_TRAINER}{path}" for path in _paths(trainer))]
    if name in paths:
        return name
    found = [path for path in paths if path.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"`{name}` could be any of {found}; give more of its path.")
    raise ValueError(
        f"There is no hyperparameter `{name}`; those of this agent and its trainer are "
        f"{', '.join(paths)}."
    )


_TRAINER = "trainer."


def _paths(node: Any) -> Iterator[str]:
    """The paths of all fields of a dataclass, those of the dataclasses in it too."""
    for field in dataclasses.fields(node):
        yield field.name
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from (f"{field.name}.{inner}" for inner in _paths(value))


def _changed(
    agent: AnyAgent, trainer: Trainer, values: Mapping[str, object]
) -> tuple[AnyAgent, Trainer]:
    """Agent and trainer with other values, by their paths."""
    options: dict[str, Any] = {}
    for path, value in values.items():
        if path.startswith(_TRAINER):
            options[path.removeprefix(_TRAINER)] = value
        else:
            agent = _replaced(agent, path.split("."), value)
    if options and trainer.is_on_policy:
        # The other fields follow from these.
        sizes = {
            "num_envs": trainer.num_envs,
            "steps_per_iteration": trainer.steps_per_iteration,
            "make_replay": trainer.make_replay,
        } | options
        num_steps = sizes.pop("steps_per_iteration")
        return agent, Trainer.on_policy(num_steps=num_steps, **sizes)
    return agent, dataclasses.replace(trainer, **options)


def _replaced(node: Any, path: Sequence[str], value: object) -> Any:
    name, *rest = path
    if rest:
        value = _replaced(getattr(node, name), rest, value)
    # The constructor converts and checks what it is given.
    return dataclasses.replace(node, **{name: value})


@dataclasses.dataclass(frozen=True)
class _Part:
    """What some members have come to that trained side by side.

    - `pairs`: which members.
    - `scores`: of each, `None` where it diverged.
    - `metrics`: by name, a list of the values in each row for each; `step` is common.
    - `states`: the stack of the agents' states.
    """

    pairs: list[Pair]
    scores: list[float | None]
    metrics: dict[str, Any]
    states: PyTree


@dataclasses.dataclass(frozen=True)
class _Plan:
    """All that decides a sweep, and how its members are trained.

    - `keys`, `evaluation_keys`: of each seed, then of each fresh one.
    - The others are as in `sweep`.
    """

    settings: list[Setting]
    env: AnyEnv
    num_seeds: int
    num_fresh_seeds: int
    num_steps: int
    log_every: int
    num_episodes: int
    score: Score[Any]
    center: Center
    members: Members
    at_once: int | None
    folder: Path | None
    checkpoint_every: int | None
    progress: Callable[[int, int], object] | None
    keys: Key[Array, " seeds"]
    evaluation_keys: Key[Array, " seeds"]

    def check(self) -> list[list[int]]:
        """Checks each setting, and groups those that share a program.

        Raises a `ValueError` that names the setting unless it can be trained.
        """
        groups: list[tuple[PyTree, list[int]]] = []
        for index, setting in enumerate(self.settings):
            kind = jax.tree.map(
                lambda x: (
                    jax.ShapeDtypeStruct(x.shape, x.dtype) if eqx.is_array(x) else x
                ),
                (setting.agent, setting.trainer),
            )
            same = [group for each, group in groups if eqx.tree_equal(each, kind)]
            try:
                check_numbers(setting.agent, self.env.spec)
                if not same:
                    self.check_kind(setting)
            except ValueError as error:
                raise ValueError(
                    f"The setting {setting.values} is wrong: {error}"
                ) from error
            if same:
                same[0].append(index)
            else:
                groups.append((kind, [index]))
        return [group for _, group in groups]

    def check_kind(self, setting: Setting) -> None:
        """Traces the first iteration, so that errors appear before any training."""
        agent, trainer = setting.agent, setting.trainer
        trainer.check_num_steps(self.num_steps)
        trainer.schedule.check_call("num_steps", self.num_steps)
        state, counts = eqx.filter_eval_shape(
            jit_init, trainer, agent, self.env, key=jr.key(0)
        )
        # Only the update of an on-policy agent knows whether minibatches fit a rollout.
        if agent.sequence_length is None:
            eqx.filter_eval_shape(
                trainer.step, agent, self.env, state, counts, key=jr.key(0)
            )

    @contextlib.contextmanager
    def opened(self, key: PRNGKeyArray, asked: Mapping[str, str]) -> Iterator[None]:
        """Locks the folder, if there is one, and checks that it is of this sweep.

        `asked` describes what the settings change.
        """
        if self.folder is None:
            yield
            return
        content = {
            **asked,
            "env": as_text(self.env),
            "settings": [
                {name: as_cell(value) for name, value in setting.values.items()}
                for setting in self.settings
            ],
            "num_seeds": self.num_seeds,
            "num_fresh_seeds": self.num_fresh_seeds,
            "num_steps": self.num_steps,
            "log_every": self.log_every,
            "num_episodes": self.num_episodes,
            "score": as_text(self.score),
            "center": self.center,
            "members": self.members,
            "key": np.asarray(jr.key_data(key)).tolist(),
        }
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"`folder={str(folder)!r}` is a file; give another.")
        check_directory(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if (folder / SWEEP).exists():
                saved = read_json(folder / SWEEP, dict, _ADVICE)
                for name, value in content.items():
                    if saved.get(name) != value:
                        raise ValueError(
                            f"`folder={str(folder)!r}` holds another sweep: its "
                            f"`{name}` is {shown(saved.get(name))}, not "
                            f"{shown(value)}. Resume with the same, or give another."
                        )
            elif {path.name for path in folder.iterdir()} - _BEFORE:
                raise ValueError(
                    f"`folder={str(folder)!r}` is not empty, and holds no sweep; give "
                    "another."
                )
            else:
                write_json(folder, SWEEP, {**versions(), **content})
            yield

    def load(self) -> list[_Part]:
        """What was trained already, with the states of its agents."""
        parts = [] if self.folder is None else read_parts(self.folder)
        return [
            dataclasses.replace(part, states=self.load_states(part)) for part in parts
        ]

    def load_states(self, part: _Part) -> PyTree:
        agent = self.settings[part.pairs[0][0]].agent
        like = eqx.filter_eval_shape(agent.init, self.env.spec, key=jr.key(0))
        like = jax.tree.map(
            lambda x: (
                jax.ShapeDtypeStruct((len(part.pairs), *x.shape), x.dtype)
                if is_array_shape(x)
                else x
            ),
            like,
        )
        folder = cast(Path, self.folder) / _POLICIES / _name(part.pairs)
        return restore_part(folder, like, None, None, advice=_ADVICE)

    def train(self, pairs: Sequence[Pair], parts: Sequence[_Part]) -> list[_Part]:
        """Trains those members that are in none of the parts.

        All share a program. They train in parts of equal size, the last of which is
        filled up, so that it is compiled once.
        """
        done = {pair for part in parts for pair in part.pairs}
        pairs = [pair for pair in pairs if pair not in done]
        if not pairs:
            return []
        at_once = self.at_once
        if at_once is None:
            at_once = self.fitting(self.settings[pairs[0][0]])
        width = -(-len(pairs) // -(-len(pairs) // at_once))
        # Where seeds run in turn, the cores have equal shares of them.
        devices = jax.devices()
        shares = 1
        if self.members == "in_turn" and devices[0].platform == "cpu":
            shares = min(len(devices), width)
        filled = -(-width // shares) * shares
        trained = []
        for start in range(0, len(pairs), width):
            part = self.train_part(
                pairs[start : start + width], filled, len(done) + start
            )
            trained.append(part)
        return trained

    def fitting(self, setting: Setting) -> int:
        """How many trainings fill a quarter of the memory of the device."""
        state, _ = eqx.filter_eval_shape(
            jit_init, setting.trainer, setting.agent, self.env, key=jr.key(0)
        )
        size = sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(state)
            if is_array_shape(leaf)
        )
        statistics = jax.devices()[0].memory_stats() or {}
        memory = statistics.get("bytes_limit", 0)
        if not memory:
            memory = 2**33
            with contextlib.suppress(AttributeError, OSError, ValueError):
                memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            # A container may have less.
            with contextlib.suppress(OSError, ValueError):
                memory = min(memory, int(_MEMORY_LIMIT.read_text()))
        return max(1, memory // (4 * size))

    def train_part(self, pairs: list[Pair], width: int, before: int) -> _Part:
        """Trains and scores some members, which are repeated to fill the width."""
        given = [*pairs, *pairs[-1:] * (width - len(pairs))]
        chosen = [self.settings[index] for index, _ in given]
        agents = jax.tree.map(
            lambda *x: jnp.asarray(np.stack(x)) if eqx.is_array(x[0]) else x[0],
            *(setting.agent for setting in chosen),
        )
        seeds = np.array([seed for _, seed in given])

        def report(step: int, metrics: object, solution: object) -> None:
            del metrics, solution
            if self.progress is not None:
                total = len(self.settings) * self.num_seeds + self.num_fresh_seeds
                done = before * self.num_steps + len(pairs) * step
                self.progress(done, total * self.num_steps)

        solution = self.reached(chosen[0], agents, self.keys[seeds], pairs, report)
        state = solution.trainer_state
        scores = self.scores(agents, state.agent, state.failed, seeds)
        part = _Part(
            pairs=pairs,
            scores=finite(scores[: len(pairs)]),
            metrics=self.rows(chosen[0].trainer, solution.metrics, len(pairs)),
            states=_take(state.agent, np.arange(len(pairs))),
        )
        if self.folder is not None:
            name = _name(pairs)
            save_policy(self.folder / _POLICIES / name, self.num_steps, part.states)
            (self.folder / _TRAINED).mkdir(exist_ok=True)
            content = {"scores": part.scores, "metrics": part.metrics}
            content["pairs"] = [list(pair) for pair in pairs]
            # Once this is written, the part is never trained again.
            write_json(self.folder / _TRAINED, f"{name}.json", content)
            shutil.rmtree(self.folder / _UNFINISHED / name, ignore_errors=True)
        return part

    def reached(
        self,
        setting: Setting,
        agents: AnyAgent,
        keys: Key[Array, " members"],
        pairs: list[Pair],
        report: Callable[[int, object, object], None],
    ) -> AnySolution:
        """Trains the members to the end, or until all have diverged."""
        trainer, initial = setting.trainer, None
        with contextlib.ExitStack() as stack:
            checkpoints = None
            if self.folder is not None:
                directory = self.folder / _UNFINISHED / _name(pairs)
                if saved_steps(directory):
                    initial = load_solution(directory, setting.agent, self.env, trainer)
                checkpoints = stack.enter_context(
                    Checkpoints(directory, every_steps=self.checkpoint_every)
                )
            left = self.num_steps - (0 if initial is None else step_of(initial))
            if initial is not None and left <= 0:
                return initial
            try:
                return train_members(
                    trainer,
                    agents,
                    self.env,
                    keys,
                    are_stacked=True,
                    num_steps=left,
                    initial=initial,
                    log_every=self.log_every,
                    callback=report,
                    checkpoint=checkpoints,
                    members=self.members,
                )
            except NonFiniteError as error:
                return error.solution
            except TrainingInterrupted as error:
                if checkpoints is not None:
                    checkpoints.save(error.solution)
                raise

    def scores(
        self,
        agents: AnyAgent,
        states: PyTree,
        failed: Bool[Array, " members"],
        seeds: Int[np.ndarray, " members"],
    ) -> Float[np.ndarray, " members"]:
        """The score of each, in the episodes of its seed; `nan` if it has diverged."""
        mesh = default_mesh(self.members, len(seeds))
        keys = self.evaluation_keys[seeds]
        agents, states, failed, keys = shard((agents, states, failed, keys), mesh)
        _, scores = evaluate_members(
            agents,
            states,
            failed,
            replicate(self.env, mesh),
            key=jr.key(0),
            num_episodes=self.num_episodes,
            descriptor=None,
            score=self.score,
            members=self.members,
            mesh=mesh,
            keys=keys,
        )
        scores = to_host(scores, mesh)
        return np.where(np.isfinite(scores), scores, np.nan)

    def rows(self, trainer: Trainer, metrics: History, number: int) -> dict[str, Any]:
        """The metrics of the first members, as they do not depend on the others.

        A member that has diverged has no more rows, and where all have the training
        ends.
        """
        size = trainer.steps_of_iteration
        length = -(-self.log_every // size) * size
        steps = [*range(length, self.num_steps, length), self.num_steps]
        lost = np.cumsum(metrics["nonfinite"] > 0, axis=0) > 1
        rows: dict[str, Any] = {"step": steps}
        for name, values in metrics.items():
            if name != "step":
                padded = np.full((len(steps), values.shape[1]), np.nan)
                padded[: len(values)] = np.where(lost, np.nan, values)
                rows[name] = [finite(column) for column in padded.T[:number]]
        return rows

    def fresh_scores(
        self, solution: SweepSolution[Any, Any], parts: Sequence[_Part]
    ) -> Float[np.ndarray, " fresh"]:
        """The scores of the best setting that did not choose it."""
        best, number = solution.best, self.num_fresh_seeds or self.num_seeds
        if best is None:
            return np.full(number, np.nan)
        seeds = self.num_seeds + np.arange(number)
        if self.num_fresh_seeds > 0:
            pairs = [(best, int(seed)) for seed in seeds]
            parts = [*parts, *self.train(pairs, parts)]
            found = scores_of(parts)
            return np.array([found[pair] for pair in pairs])
        failed = jnp.asarray(np.isnan(solution.scores[best]))
        agents = repeated(solution.agents[best], number)
        return self.scores(agents, solution.states[best], failed, seeds)

    def solution(self, parts: Sequence[_Part]) -> SweepSolution[Any, Any]:
        """The result without the fresh scores."""
        parts = sorted(parts, key=lambda part: part.pairs[0])
        states = []
        for index in range(len(self.settings)):
            pieces = []
            for part in parts:
                seeds = [
                    self.num_seeds if i != index else seed for i, seed in part.pairs
                ]
                places = np.flatnonzero(np.array(seeds) < self.num_seeds)
                if len(places) > 0:
                    pieces.append(_take(part.states, places))
            states.append(jax.tree.map(_concatenated, *pieces))
        found = joined(
            parts,
            [setting.values for setting in self.settings],
            self.num_seeds,
            self.center,
        )
        agents = tuple(setting.agent for setting in self.settings)
        return dataclasses.replace(found, agents=agents, states=tuple(states))


SWEEP = "sweep.json"
"""File that says what a sweep is, and marks its folder."""

SEARCH = "search.json"
"""What the command line was asked to search."""

TABLE = "settings.csv"
"""The table of a sweep that has ended."""

_TRAINED, _POLICIES, _UNFINISHED = "trained", "policy", "unfinished"
_FRESH = "fresh.json"

# What may be in the folder of a sweep before it begins.
_BEFORE = {LOCK, CONFIG, SEARCH, f"{SWEEP}.partial"}

_ADVICE = "take it from a copy of the sweep, or train again"

_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def _name(pairs: Sequence[Pair]) -> str:
    """The name of the files of a part: its first member, and how many there are."""
    (setting, seed), count = pairs[0], len(pairs)
    return f"{setting}_{seed}_{count}"


@eqx.filter_jit
def _take(stack: PyTree, places: Int[np.ndarray, " taken"]) -> PyTree:
    return jax.tree.map(lambda x: x[places] if eqx.is_array(x) else x, stack)


def _concatenated(*pieces: Any) -> Any:
    one_piece = len(pieces) == 1 or not eqx.is_array(pieces[0])
    return pieces[0] if one_piece else jnp.concatenate(pieces)


def scores_of(parts: Sequence[_Part]) -> dict[Pair, float]:
    """The score of each member that has trained; `nan` if it has diverged."""
    return {
        pair: math.nan if score is None else score
        for part in parts
        for pair, score in zip(part.pairs, part.scores, strict=True)
    }


def joined(
    parts: Sequence[_Part],
    values: Sequence[dict[str, object]],
    num_seeds: int,
    center: Center,
) -> SweepSolution[Any, Any]:
    """Scores and metrics of all settings, of which every member must be in a part."""
    scores = scores_of(parts)
    columns = {
        pair: {name: rows if name == "step" else rows[place] for name, rows in metrics}
        for part in parts
        for place, pair in enumerate(part.pairs)
        for metrics in [part.metrics.items()]
    }
    seeds = range(num_seeds)
    return SweepSolution(
        settings=tuple(values),
        scores=np.array(
            [[scores[i, seed] for seed in seeds] for i in range(len(values))]
        ),
        fresh_scores=np.full(num_seeds, np.nan),
        metrics=tuple(
            {
                name: np.array(columns[i, 0][name])
                if name == "step"
                else np.array([columns[i, seed][name] for seed in seeds], float).T
                for name in columns[i, 0]
            }
            for i in range(len(values))
        ),
        center=center,
        agents=(),
        states=(),
    )


def read_parts(folder: Path) -> list[_Part]:
    """All that a sweep has trained to the end, without the states of its agents."""

    def parse(content: Content) -> _Part:
        pairs = [(int(setting), int(seed)) for setting, seed in content["pairs"]]
        return _Part(pairs, content["scores"], content["metrics"], None)

    return [
        read_json(path, parse, "delete it to train these members again")
        for path in sorted((folder / _TRAINED).glob("*.json"))
    ]


def read_sweep(folder: Path) -> SweepSolution[Any, Any]:
    """Reads the settings of a sweep that have trained, without agents and states.

    Raises a `ValueError` if there is no sweep, or none of them has trained.
    """
    saved = read_json(folder / SWEEP, dict, _ADVICE)
    parts, num_seeds = read_parts(folder), saved["num_seeds"]
    found = scores_of(parts)
    complete = [
        index
        for index in range(len(saved["settings"]))
        if all((index, seed) in found for seed in range(num_seeds))
    ]
    if not complete:
        raise ValueError(f"No setting of the sweep in `{folder}` has trained yet.")
    numbers = {index: number for number, index in enumerate(complete)}
    kept = [
        dataclasses.replace(
            part, pairs=[(numbers.get(i, -1), s) for i, s in part.pairs]
        )
        for part in parts
    ]
    values = [saved["settings"][index] for index in complete]
    solution = joined(kept, values, num_seeds, saved["center"])
    if (folder / _FRESH).exists():
        fresh = read_json(folder / _FRESH, lambda content: content["scores"], _ADVICE)
        solution = dataclasses.replace(solution, fresh_scores=np.array(fresh, float))
    return solution


def write_sweep(folder: Path, solution: SweepSolution[Any, Any]) -> None:
    """Writes the table and the figures of a sweep that has ended."""
    write_json(folder, _FRESH, {"scores": finite(solution.fresh_scores)})
    solution.write_csv(folder / TABLE)
    shutil.rmtree(folder / _UNFINISHED, ignore_errors=True)
    write_picture(folder, "sweep.png", draw_sweep, solution)
    curves = solution.curves
    shown_first = {name for run in curves.values() for name in shown_metrics(run)}
    if "episode_return" in shown_first:
        write_picture(
            folder,
            "learning_curves.png",
            draw_learning_curves,
            curves,
            center=solution.center,
        )
