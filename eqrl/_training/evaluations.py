"""Evaluation while training: the best policy, and an early end."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Generic

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Bool, Float, Key, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._interaction.evaluate import Descriptor, Evaluation, evaluate
from .._interaction.evaluate_skills import Score, mean_return
from .._pytree.fields import PositiveInt, Range, Takes, checked, reusable_key
from .._pytree.tree import repeated, stack_size, take_element, tree_copy
from .._types.custom_types import EnvState, Extras, Memory, Mode, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._host import checked_result
from .mesh import (
    Members,
    gather,
    map_members,
    on_each_device,
    replicate,
    shard,
    to_host,
)
from .rows import History, OfflineSolution, Row, Solution


@dataclasses.dataclass(frozen=True)
class BestPolicy(Generic[State]):
    """The agent's state with the highest score of an `Evaluations`.

    **Attributes:**

    - `step`: environment steps before it was evaluated.
    - `score`: its score, the mean return by default.
    - `state`: the agent's state, a copy.
    """

    step: int
    score: float
    state: State


@eqx.filter_jit
def evaluate_members(
    agents: AnyAgent,
    states: PyTree,
    failed: Bool[Array, " population"],
    env: AnyEnv,
    key: PRNGKeyArray,
    num_episodes: int,
    descriptor: Descriptor | None,
    score: Score,
    members: Members,
    mesh: Mesh | None,
    mode: Mode = "greedy",
    keys: Key[Array, " population"] | None = None,
) -> tuple[Evaluation, Float[Array, " population"]]:
    """The evaluation and the score of each member; the score is `nan` if it failed.

    Each derives its own key from `key`, unless `keys` are given.
    """

    def evaluate_share(stacked: PyTree, env: AnyEnv) -> tuple[PyTree, None]:
        def evaluate_one(
            agent: AnyAgent, state: PyTree, failed: Bool[Array, ""], key: PRNGKeyArray
        ) -> tuple[Evaluation, Float[Array, ""]]:
            evaluation = evaluate(
                agent,
                state,
                env,
                num_episodes=num_episodes,
                key=key,
                mode=mode,
                descriptor=descriptor,
            )
            value = checked_score(score(agent, state, evaluation))
            return evaluation, jnp.where(failed, jnp.nan, value)

        return map_members(evaluate_one, members, *stacked), None

    keys = jr.split(key, stack_size(states)) if keys is None else keys
    stacked = (agents, states, failed, keys)
    result, _ = on_each_device(evaluate_share, mesh, stacked, env)
    return result


def checked_score(value: ArrayLike) -> ArrayLike:
    """The score, or a `ValueError` unless it is one number."""
    if not eqx.is_array_like(value) or jnp.shape(value) != ():
        raise ValueError(
            "`score` must be one number for each member, such as a mean over its "
            f"episodes, but it is {eqx.tree_pformat(value)}."
        )
    return value


class Evaluations(Generic[State]):
    """Evaluates an agent at intervals of steps while it trains.

    ```python
    evaluations = eqrl.Evaluations(agent, env, every=5_000, key=jr.key(1))
    solution = eqrl.train_seeds(agent, env, trainer, ..., evaluations=evaluations)
    solution.metrics["evaluation_return"]
    ```

    As the argument `evaluations` of `train`, `train_seeds` and `learn_skills` it adds
    columns to the metrics, `nan` in rows without an evaluation: `evaluation_return`,
    unless rewards are vectors, and `evaluation_length`, means over the episodes, and
    `evaluation_score`, if there is a `score`. As a callback of `train`, or of
    `train_offline`, where steps are updates, it leaves the metrics as they are.

    It keeps the best policy, and ends training if asked to. Its episodes are separate
    from training and do not affect it; their steps are not counted. In `learn_skills`,
    it evaluates the skill in training.

    **Attributes:**

    - `steps`: the environment steps before each evaluation.
    - `scores`: the score of each, averaged over seeds; by default the mean return.
    - `returns`: an array per evaluation with the axis `episodes`, after the axis
        `seeds` in `train_seeds`.
    - `best_of_seeds`: for each seed, the policy with the highest score, the first in a
        tie; `None` if no score was a number. One agent counts as one seed.
    - `ends_training`: whether the evaluation of the latest row, if it had one, asks to
        end training.
    """

    @checked
    def __init__(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        *,
        every: PositiveInt,
        key: PRNGKeyArray,
        num_episodes: PositiveInt = 16,
        mode: Mode = "greedy",
        score: Annotated[Score[Any, State], Takes(("agent", "state", "evaluation"))]
        | None = None,
        patience: PositiveInt | None = None,
        target: Annotated[float | int, Range()] | None = None,
        log: Annotated[
            Callable[[dict[str, float], int], object], Takes(("metrics", "step"))
        ]
        | None = None,
    ) -> None:
        """**Arguments:**

        - `agent`: the agent that is trained, or one that acts from its state.
        - `env`: where to evaluate it; it needs a time limit.
        - `every`: environment steps from one evaluation to the next. An evaluation
            takes place after the first row of the metrics, of `log_every` steps, that
            reaches a multiple of it.
        - `key`: each evaluation derives its own key from it and the step.
        - `num_episodes`: episodes per evaluation.
        - `mode`: how actions are picked.
        - `score`: maps an agent, its state and its `Evaluation` to a number, the higher
            the better; by default the mean return. Required if the reward is a vector.
            With several seeds it is compiled.
        - `patience`: ends training when this many evaluations in a row were no better
            than the best before them; `None` means never.
        - `target`: ends training when a score reaches it; `None` means never. Seeds
            train together, until each of them is out of patience, has reached the
            target or has diverged.
        - `log`: called as `log(metrics, step)` after each evaluation, with the columns
            above averaged over seeds.
        """
        if score is None and env.spec.reward_size is not None:
            raise ValueError(
                "The environment's reward is a vector, so mean returns cannot rank "
                "policies; give a `score`, such as `eqrl.weighted_return`."
            )
        if env.spec.max_steps is None:
            raise ValueError(
                "This environment has no time limit (`spec.max_steps` is None), so an "
                "episode of an evaluation might never end; put an "
                "`eqrl.envs.TimeLimit` around it."
            )
        key = reusable_key(key)
        self._agent, self._env, self._key = agent, env, key
        self._every, self._num_episodes = every, int(num_episodes)
        self._mode: Mode = mode
        self._score, self._patience = score, patience
        # Rounded as scores are: 0.9 is more than the nearest number of 32 bits.
        self._target = None if target is None else float(jnp.asarray(target, float))
        self._log = log
        self.steps: list[int] = []
        self.scores: list[float] = []
        self.returns: list[Float[np.ndarray, "..."]] = []
        self.best_of_seeds: list[BestPolicy[State] | None] = []
        self.ends_training: bool = False
        # For each seed, the evaluations since its best one.
        self._since_best: list[int] = []

    @property
    def best(self) -> BestPolicy[State] | None:
        """The policy with the highest score of all; `None` before there is one."""
        found = [best for best in self.best_of_seeds if best is not None]
        return max(found, key=lambda best: best.score, default=None)

    def __call__(
        self,
        step: int,
        metrics: object,
        solution: Solution[State, EnvState, Memory, Extras] | OfflineSolution[State],
    ) -> bool:
        """Evaluates if it is time. Returns whether training should end."""
        del metrics
        if not isinstance(solution, Solution | OfflineSolution):
            raise ValueError(
                "As a callback, `Evaluations` is for `train` and `train_offline`, not "
                f"for what gives a `{type(solution).__name__}`: `train_population` "
                "evaluates each generation by itself, and `learn_skills` takes the "
                "argument `evaluations`."
            )
        if isinstance(solution, Solution) and solution.trainer_state.failed.ndim == 1:
            raise ValueError(
                "As a callback, `Evaluations` evaluates one agent; give it to "
                "`train_seeds` as the argument `evaluations`."
            )
        before = {name: rows[:-1] for name, rows in solution.metrics.items()}
        self.measure(step, before, solution.state)
        return self.ends_training

    def measure(
        self,
        step: int,
        history: History,
        state: State,
        failed: Bool[Array, "*seeds"] | None = None,
        *,
        members: Members = "in_turn",
        mesh: Mesh | None = None,
    ) -> Row:
        """Evaluates if it is time, and returns the metrics of the row.

        **Arguments:**

        - `step`: environment steps at the end of the row.
        - `history`: the rows before it.
        - `state`: the agent's state, or the stacked states of all seeds.
        - `failed`: whether each seed has diverged; `None` for one agent.
        - `members`, `mesh`: how seeds run, and on which devices.
        """
        is_stack = failed is not None and failed.ndim == 1
        steps = history.get("step", ())
        before = int(steps[-1]) if len(steps) > 0 else 0
        self.ends_training = False
        names = ["evaluation_length"]
        # The mean of vector returns would not be meaningful.
        names += ["evaluation_return"] if self._env.spec.reward_size is None else []
        names += [] if self._score is None else ["evaluation_score"]
        if step // self._every == before // self._every:
            shape = (stack_size(state),) if is_stack else ()
            return dict.fromkeys(names, np.full(shape, np.nan, jnp.result_type(float)))
        stack = failed if is_stack else None
        evaluation, scores = self._evaluate(step, state, stack, members, mesh)
        returns, lengths, scores = to_host(
            (evaluation.returns, evaluation.lengths, scores), mesh
        )
        self.steps.append(step)
        self.returns.append(returns)
        self.scores.append(_mean(scores))
        lost = np.asarray(False) if stack is None else to_host(stack, mesh)
        self._keep(state, scores, lost)
        values = {
            "evaluation_length": lengths.mean(axis=-1, dtype=scores.dtype),
            "evaluation_return": returns.mean(axis=-1),
            "evaluation_score": scores,
        }
        row = {name: np.where(lost, np.nan, values[name]) for name in names}
        if self._log is not None:
            self._log({name: _mean(value) for name, value in row.items()}, step)
        return row

    def _evaluate(
        self,
        step: int,
        state: State,
        failed: Bool[Array, " seeds"] | None,
        members: Members,
        mesh: Mesh | None,
    ) -> tuple[Evaluation[None], Float[Array, "*seeds"]]:
        """The evaluation and the score of one agent, or of a stack of seeds."""
        # `fold_in` takes 32 bits, and a training may have more environment steps.
        key = jr.fold_in(self._key, step % 2**32)
        score = mean_return if self._score is None else self._score
        if failed is None:
            evaluation = evaluate(
                self._agent,
                state,
                self._env,
                num_episodes=self._num_episodes,
                key=key,
                mode=self._mode,
            )
            value = checked_score(score(self._agent, state, evaluation))
            return evaluation, jnp.asarray(value, float)
        # A key for each seed: with shared episodes, an interval over seeds would be too
        # narrow.
        env, key = replicate((self._env, key), mesh)
        play = functools.partial(
            evaluate_members,
            shard(repeated(self._agent, stack_size(state)), mesh),
            state,
            failed,
            env=env,
            key=key,
            num_episodes=self._num_episodes,
            descriptor=None,
            score=score,
            members=members,
            mesh=mesh,
            mode=self._mode,
        )
        return checked_result(self._env, play)

    def _keep(
        self,
        state: State,
        scores: Float[np.ndarray, "*seeds"],
        lost: Bool[np.ndarray, "*seeds"],
    ) -> None:
        """Keeps the states that are better than before, and decides whether to end."""
        given = np.atleast_1d(scores).tolist()
        self.best_of_seeds = self.best_of_seeds or [None] * len(given)
        self._since_best = self._since_best or [0] * len(given)
        for seed, score in enumerate(given):
            best = self.best_of_seeds[seed]
            self._since_best[seed] += 1
            # A score of nan is never better, not even than no score.
            if score > (-math.inf if best is None else best.score):
                self._since_best[seed] = 0
                # A copy: the state is donated to the next row.
                own = (
                    tree_copy(state)
                    if scores.ndim == 0
                    else gather(take_element(state, seed))
                )
                self.best_of_seeds[seed] = BestPolicy(self.steps[-1], score, own)
        # Seeds that diverged no longer learn, so the others do not wait for them.
        self.ends_training = all(
            is_lost or self._is_over(best, since_best)
            for is_lost, best, since_best in zip(
                np.atleast_1d(lost), self.best_of_seeds, self._since_best, strict=True
            )
        )

    def _is_over(self, best: BestPolicy[State] | None, since_best: int) -> bool:
        """Whether a seed has reached the target, or is out of patience."""
        if best is not None and self._target is not None and best.score >= self._target:
            return True
        return self._patience is not None and since_best >= self._patience


def _mean(values: Float[np.ndarray, "*seeds"]) -> float:
    """The mean of the values that are not `nan`; `nan` if there are none."""
    numbers = values[~np.isnan(values)]
    return float(np.mean(numbers)) if numbers.size > 0 else math.nan
