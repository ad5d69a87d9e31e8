"""Sweeps: many settings of hyperparameters, each trained from several seeds."""

import contextlib
import dataclasses
import functools
import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from .._agents.base import AgentOfKind, AnyAgent
from .._interaction.evaluate import Evaluation
from .._interaction.evaluate_skills import Score, mean_return
from .._interaction.fit import check_numbers
from .._population.prior import AbstractPrior, Setting, make_settings
from .._population.train import check_scalar
from .._pytree.fields import (
    NonNegativeInt,
    PositiveInt,
    Takes,
    checked,
    reusable_key,
    shown,
)
from .._pytree.tree import digest_of, giving_away, is_array_shape, repeated
from .._reporting.statistics import Center
from .._reporting.sweep import SweepSolution, as_cell, as_text
from .._storage.checkpoint import (
    Directory,
    check_directory,
    restore_part,
    saved_steps,
)
from .._storage.files import locked, read_json
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
    device_memory,
    replicate,
    shard,
    to_host,
)
from .._training.rows import AnySolution, History
from .._training.train import check_training, jit_init, train_members
from .._training.trainer import Trainer
from .._types.custom_types import Agents, EnvState, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import prepare
from ..envs._host import AbstractHostEnv, checked_result, release
from .files import CONFIG, files_in, finite, save_policy, versions, write_json
from .solutions import Checkpoints, load_solution, step_of
from .write import (
    ADVICE,
    POLICIES,
    SEARCH,
    SWEEP,
    TABLE,
    UNFINISHED,
    Pair,
    TrainedPart,
    joined,
    name_of_part,
    read_parts,
    scores_of_parts,
    write_part,
    write_sweep,
)


@checked
def sweep(
    agent: AgentOfKind[State, Agents],
    env: AbstractEnv[EnvState],
    trainer: Trainer,
    *,
    num_seeds: PositiveInt,
    num_steps: PositiveInt,
    key: PRNGKeyArray,
    grid: Mapping[str, Iterable[object]] | None = None,
    priors: Mapping[str, AbstractPrior] | None = None,
    num_draws: PositiveInt | None = None,
    num_fresh_seeds: NonNegativeInt = 0,
    log_every: PositiveInt = 1_000,
    num_episodes: PositiveInt = 64,
    score: Annotated[
        Callable[[Agents, State, Evaluation[None]], Float[Array, ""]],
        Takes(("agent", "state", "evaluation")),
    ]
    | None = None,
    evaluation_env: AnyEnv | None = None,
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

    The result of a setting equals that of `train_seeds` for its agent with the same
    key: all settings share the seeds, and the episodes that score them. Seeds of all
    settings that differ only in numbers train in one program; each value that is
    compiled, such as a size or a choice, requires its own program.

    **Arguments:**

    - `agent`, `env`, `trainer`: as for `train_seeds`, with everything that the sweep
        does not vary.
    - `num_seeds`: seeds of each setting.
    - `num_steps`: environment steps of each seed, whole iterations of each setting.
    - `key`: the key of the whole sweep, and of each training, as for `train_seeds`.
    - `grid`: values by the names of hyperparameters; all combinations are trained. A
        name is the path of a field of the agent, possibly within a wrapper or a
        factory, as in `make_actor.hidden_sizes`, or of the trainer, as in
        `trainer.batch_size`; the end of a path suffices if no other path ends in it.
    - `priors`: priors, by such names, of hyperparameters that are drawn at random
        instead. With a `grid`, all of its combinations are trained with each draw.
    - `num_draws`: how often to draw from the `priors`. More draws do not change earlier
        ones.
    - `num_fresh_seeds`: the number of new seeds to train the best setting with once
        more. By default its policies only play fresh episodes, which removes the luck
        of the episodes from `fresh_scores`, but not that of the seeds.
    - `log_every`: as for `train_seeds`.
    - `num_episodes`: greedy episodes after training that score each seed.
    - `score`: as for `Evaluations`; by default the mean return.
    - `evaluation_env`: environment of these episodes; `env` by default.
    - `center`: the statistic by which settings are compared, `"mean"` or `"iqm"`.
    - `folder`: where to save the results. If the process is killed, the same call
        resumes and gives the same table, bit for bit on the same devices; finished
        trainings are not repeated. At the end it holds `settings.csv` and figures.
    - `checkpoint_every`: environment steps of each seed between checkpoints in the
        `folder`; by default, one is saved every minute.
    - `members`: how seeds run on each device, as in `train_seeds`; by default as they
        do in the `folder` if it holds the sweep already.
    - `members_at_once`: how many seeds, of all settings together, one call trains.
        By default, as many as fill a quarter of the memory of the device with their
        agents, environments and replays; the rest is left for a copy for checkpoints
        and for the needs of an update, which are not estimated. Scores do not depend on
        it, bit for bit if seeds run in turn and otherwise up to rounding.
    - `progress`: called as `progress(done, total)`, with environment steps of all
        settings and seeds, after each row of the metrics.

    **Returns:**

    A `SweepSolution`, in which a seed that diverged has the score `nan`.

    Raises a `ValueError` before the first step if a name, a value, the score or the
    folder does not fit, and `SimulatorError` and `TrainingInterrupted` as `train_seeds`
    does; the `folder` then holds all progress.
    """
    key = reusable_key(key)
    evaluation_env = env if evaluation_env is None else evaluation_env
    prepare(env, evaluation_env)
    if score is None:
        check_scalar(evaluation_env)
    # Seeds derive keys from smaller numbers. Each purpose has its own key.
    own_key = jr.fold_in(key, 2**31 - 1)
    draw_key, evaluation_key, fresh_key, fresh_evaluation_key = jr.split(own_key, 4)
    num_fresh = num_fresh_seeds or num_seeds
    place = None if folder is None else Path(folder)
    # Draws and the default of `members` are those of the device that it began on.
    begun = {}
    if place is not None and (place / SWEEP).exists():
        begun = read_json(place / SWEEP, dict, ADVICE)
    settings = make_settings(
        *(cast(AnyAgent, agent), trainer, grid or {}, priors or {}, num_draws),
        key=draw_key,
        saved=begun.get("settings", ()),
    )
    both = lambda first, fresh: jnp.concatenate(
        [jr.split(first, num_seeds), jr.split(fresh, num_fresh)]
    )
    plan = _Plan(
        settings=settings,
        env=env,
        evaluation_env=evaluation_env,
        num_seeds=num_seeds,
        num_fresh_seeds=num_fresh_seeds,
        num_steps=num_steps,
        log_every=log_every,
        num_episodes=num_episodes,
        score=mean_return if score is None else score,
        center=center,
        members=choose_members(members or begun.get("members"), None),
        at_once=members_at_once,
        folder=place,
        checkpoint_every=checkpoint_every,
        progress=progress,
        keys=both(key, fresh_key),
        evaluation_keys=both(evaluation_key, fresh_evaluation_key),
    )
    groups = group_settings(settings, env, num_steps)
    plan.check_evaluation(groups)
    asked = {"agent": as_text(agent), "trainer": as_text(trainer)}
    with deferred_interrupt() as interrupted, plan.opened(key, asked):
        parts = plan.load()
        for group in groups:
            parts += plan.train([*itertools.product(group, range(num_seeds))], parts)
        solution = plan.solution(parts)
        fresh = plan.fresh_scores(solution, parts)
        solution = dataclasses.replace(solution, fresh_scores=fresh)
        if plan.folder is not None:
            write_sweep(plan.folder, solution)
        # After the last row, and where nothing is left to train, nothing else reads it.
        if (received := interrupted()) is not None:
            raise TrainingInterrupted(solution, received)
    return cast(SweepSolution[State, Agents], solution)


def group_settings(
    settings: Sequence[Setting], env: AnyEnv, num_steps: int
) -> list[list[int]]:
    """The indices of the settings, grouped by the program that they share.

    Raises a `ValueError` that names a setting if it cannot be trained.
    """
    groups: list[tuple[PyTree, list[int]]] = []
    trainer = settings[0].trainer
    if all(eqx.tree_equal(each.trainer, trainer) is True for each in settings):
        # If the number of steps fits no setting, no single one is at fault.
        trainer.check_num_steps(num_steps)
    for index, setting in enumerate(settings):
        agent, trainer = setting.agent, setting.trainer
        kind = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if eqx.is_array(x) else x,
            (agent, trainer),
        )
        same = [group for each, group in groups if eqx.tree_equal(each, kind)]
        try:
            check_numbers(agent, env.spec)
            if not same:
                trainer.check_num_steps(num_steps)
                trainer.schedule.check_call("num_steps", num_steps)
                check_training(trainer, agent, env)
        except ValueError as error:
            raise ValueError(
                f"The setting {setting.values} is wrong: {error}"
            ) from error
        if same:
            same[0].append(index)
        else:
            groups.append((kind, [index]))
    return [group for _, group in groups]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Everything that determines a sweep, and how its members are trained.

    - `keys`, `evaluation_keys`: a key for each seed, then for each fresh one.
    - The others are as in `sweep`.
    """

    settings: list[Setting]
    env: AnyEnv
    evaluation_env: AnyEnv
    num_seeds: int
    num_fresh_seeds: int
    num_steps: int
    log_every: int
    num_episodes: int
    score: Score
    center: Center
    members: Members
    at_once: int | None
    folder: Path | None
    checkpoint_every: int | None
    progress: Callable[[int, int], object] | None
    keys: Key[Array, " seeds"]
    evaluation_keys: Key[Array, " seeds"]

    @contextlib.contextmanager
    def opened(self, key: PRNGKeyArray, asked: Mapping[str, str]) -> Iterator[None]:
        """Checks that the folder, if there is one, belongs to this sweep, and locks it.

        `asked` describes what the settings change.
        """
        if self.folder is None:
            yield
            return
        # Texts show only the shapes of arrays. The one of a simulator outside JAX is a
        # number of this process.
        is_host = lambda x: isinstance(x, AbstractHostEnv)
        without_hosts = lambda tree: eqx.filter(
            tree, lambda x: not is_host(x), is_leaf=is_host
        )
        arrays_of = lambda tree: digest_of(without_hosts(tree)).tobytes().hex()
        content = {
            **asked,
            "env": as_text(self.env),
            "evaluation_env": as_text(self.evaluation_env),
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
            "arrays_of_agents": arrays_of(
                [(setting.agent, setting.trainer) for setting in self.settings]
            ),
            "arrays_of_env": arrays_of(self.env),
            "arrays_of_evaluation_env": arrays_of(self.evaluation_env),
        }
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"`folder={str(folder)!r}` is a file; give another.")
        check_directory(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Nothing is written once the sweep has ended, so several processes can read it
        # then, also from a folder that is read-only.
        has_ended = (folder / TABLE).exists()
        with contextlib.nullcontext() if has_ended else locked(folder, again=True):
            if (folder / SWEEP).exists():
                saved = read_json(folder / SWEEP, dict, ADVICE)
                for name, value in content.items():
                    if saved.get(name) != value:
                        raise ValueError(
                            f"`folder={str(folder)!r}` holds another sweep: its "
                            f"`{name}` is {shown(saved.get(name))}, not "
                            f"{shown(value)}. Resume with the same, or give another."
                        )
            elif {*files_in(folder)} - _BEFORE:
                raise ValueError(
                    f"`folder={str(folder)!r}` is not empty, and holds no sweep; give "
                    "another."
                )
            else:
                write_json(folder, SWEEP, {**versions(), **content})
            yield

    def load(self) -> list[TrainedPart]:
        """All parts that have been trained already, with the states of their agents."""
        parts = [] if self.folder is None else read_parts(self.folder)
        return [
            dataclasses.replace(part, states=self.load_states(part)) for part in parts
        ]

    def load_states(self, part: TrainedPart) -> PyTree:
        like = self.shapes_of_states(part.pairs)
        folder = cast(Path, self.folder) / POLICIES / name_of_part(part.pairs)
        return restore_part(folder, like, None, None, advice=ADVICE)

    def check_evaluation(self, groups: Sequence[Sequence[int]]) -> None:
        """Traces the evaluation of each program, so that errors appear at first."""
        evaluate = self.evaluator(default_mesh(self.members, 1))
        for index, *_ in groups:
            agents = repeated(self.settings[index].agent, 1)
            states = self.shapes_of_states([(index, 0)])
            failed = jnp.zeros(1, bool)
            keys = jax.ShapeDtypeStruct((1,), self.evaluation_keys.dtype)
            eqx.filter_eval_shape(evaluate, agents, states, failed, keys=keys)

    def shapes_of_states(self, pairs: Sequence[Pair]) -> PyTree:
        """The shapes of the states of agents, stacked."""
        agent = self.settings[pairs[0][0]].agent
        return jax.tree.map(
            lambda x: (
                jax.ShapeDtypeStruct((len(pairs), *x.shape), x.dtype)
                if is_array_shape(x)
                else x
            ),
            eqx.filter_eval_shape(agent.init, self.env.spec, key=jr.key(0)),
        )

    def train(
        self, pairs: Sequence[Pair], parts: Sequence[TrainedPart]
    ) -> list[TrainedPart]:
        """Trains the members that are not in any of the parts.

        All share a program. They train in parts of equal size, the last one padded, so
        that it is compiled once. The size does not depend on what is trained already,
        so that a resumed sweep has the same parts and finds their checkpoints.
        """
        done = {pair for part in parts for pair in part.pairs}
        if done.issuperset(pairs):
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
            # A part is partly done if it was trained with another `members_at_once`.
            left = [pair for pair in pairs[start : start + width] if pair not in done]
            if left:
                trained.append(self.train_part(left, filled, len(done)))
                done.update(left)
        return trained

    def fitting(self, setting: Setting) -> int:
        """The number of trainings that fill a quarter of the memory of the device."""
        state, _ = eqx.filter_eval_shape(
            jit_init, setting.trainer, setting.agent, self.env, key=jr.key(0)
        )
        size = sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(state)
            if is_array_shape(leaf)
        )
        return max(1, device_memory() // (4 * size))

    def train_part(self, pairs: list[Pair], width: int, before: int) -> TrainedPart:
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
        release(state.actors.env_state)
        steps, rows = self.rows(chosen[0].trainer, solution.metrics, len(pairs))
        part = TrainedPart(
            pairs=pairs,
            scores=finite(scores[: len(pairs)]),
            steps=steps,
            metrics=rows,
            states=_take(state.agent, np.arange(len(pairs))),
        )
        if self.folder is not None:
            name = name_of_part(pairs)
            save_policy(self.folder / POLICIES / name, self.num_steps, part.states)
            # Once this is written, the part is never trained again.
            write_part(self.folder, part)
            shutil.rmtree(self.folder / UNFINISHED / name, ignore_errors=True)
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
                directory = self.folder / UNFINISHED / name_of_part(pairs)
                if saved_steps(directory):
                    initial = load_solution(directory, setting.agent, self.env, trainer)
                    # With another number of devices, or another `members_at_once`, a
                    # part may be padded to another width.
                    if len(initial.trainer_state.failed) != len(keys):
                        shutil.rmtree(directory)
                        initial = None
                checkpoints = stack.enter_context(
                    Checkpoints(directory, every_steps=self.checkpoint_every)
                )
            left = self.num_steps - (0 if initial is None else step_of(initial))
            if initial is not None and left <= 0:
                return initial
            stack.enter_context(giving_away())
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
        evaluate = functools.partial(
            self.evaluator(mesh), agents, states, failed, keys=keys
        )
        _, scores = checked_result(self.evaluation_env, evaluate)
        scores = to_host(scores, mesh)
        return np.where(np.isfinite(scores), scores, np.nan)

    def evaluator(self, mesh: Mesh | None) -> Callable[..., tuple[object, Array]]:
        """`evaluate_members` with all but the members and their keys filled in."""
        return functools.partial(
            evaluate_members,
            env=replicate(self.evaluation_env, mesh),
            key=jr.key(0),
            num_episodes=self.num_episodes,
            descriptor=None,
            score=self.score,
            members=self.members,
            mesh=mesh,
        )

    def rows(
        self, trainer: Trainer, metrics: History, number: int
    ) -> tuple[list[int], dict[str, list[list[float | None]]]]:
        """The steps and the metrics of the first members, independent of the others.

        A member that has diverged has no more rows, and training ends once all have.
        """
        size = trainer.steps_of_iteration
        length = -(-self.log_every // size) * size
        steps = [*range(length, self.num_steps, length), self.num_steps]
        lost = np.cumsum(metrics["nonfinite"] > 0, axis=0) > 1
        rows = {}
        for name, values in metrics.items():
            if name != "step":
                padded = np.full((len(steps), values.shape[1]), np.nan)
                padded[: len(values)] = np.where(lost, np.nan, values)
                rows[name] = [finite(column) for column in padded.T[:number]]
        return steps, rows

    def fresh_scores(
        self, solution: SweepSolution, parts: Sequence[TrainedPart]
    ) -> Float[np.ndarray, " fresh"]:
        """The scores of the best setting that were not used to choose it."""
        best, number = solution.best, self.num_fresh_seeds or self.num_seeds
        if best is None:
            return np.full(number, np.nan)
        seeds = self.num_seeds + np.arange(number)
        if self.num_fresh_seeds > 0:
            pairs = [(best, int(seed)) for seed in seeds]
            parts = [*parts, *self.train(pairs, parts)]
            found = scores_of_parts(parts)
            return np.array([found[pair] for pair in pairs])
        failed = jnp.asarray(np.isnan(solution.scores[best]))
        agents = repeated(solution.agents[best], number)
        return self.scores(agents, solution.states[best], failed, seeds)

    def solution(self, parts: Sequence[TrainedPart]) -> SweepSolution:
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
            # Seeds that did not train side by side are in several parts.
            states.append(
                jax.tree.map(
                    lambda *x: jnp.concatenate(x) if eqx.is_array(x[0]) else x[0],
                    *pieces,
                )
            )
        found = joined(
            parts,
            [setting.values for setting in self.settings],
            self.num_seeds,
            self.center,
        )
        agents = tuple(setting.agent for setting in self.settings)
        return dataclasses.replace(found, agents=agents, states=tuple(states))


# What may be in the folder of a sweep before it begins.
_BEFORE = {CONFIG, SEARCH, f"{SWEEP}.partial"}


@eqx.filter_jit
def _take(
    stack: PyTree, places: Int[Array, " taken"] | Int[np.ndarray, " taken"]
) -> PyTree:
    return jax.tree.map(lambda x: x[places] if eqx.is_array(x) else x, stack)
