import math
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._agents import AbstractAgent
from .._interaction.actors import Actors, interact, start
from .._pytree.control_flow import filter_fori_loop
from .._pytree.fields import check_integer, plain_integer
from .._pytree.tree import check_same_shapes, tree_copy, tree_where
from .._types.custom_types import EnvState, Extras, Memory, Metrics, Mode, State
from .._types.data import Transition
from ..envs import AbstractEnv
from ..envs._check import check_env
from .averages import Averages, no_averages
from .checks import (
    check_action,
    check_metrics,
    check_sizes,
)
from .metrics import all_finite, episode_metrics
from .replay import Counts, ReplayBuffer, ReplayState


class TrainerState(eqx.Module, Generic[State, EnvState, Memory, Extras]):
    """All that changes while an agent trains, `Counts` excepted."""

    agent: State
    actors: Actors[EnvState, Memory]
    replay: ReplayState[Transition[Extras]]
    failed: Bool[Array, ""]


TrainerState.__init__.__doc__ = """**Arguments:**

- `agent`: what the agent has learnt.
- `actors`: the agent in its environments, in mid-episode; a stack of `num_envs`.
- `replay`: past transitions.
- `failed`: whether an observation, an action or a reward became `nan` or infinite,
    since when nothing here has changed.
"""

AnyTrainerState = TrainerState[Any, Any, Any, Any]


class _Progress(eqx.Module):
    """The carry of the loop over iterations."""

    state: TrainerState[Any, Any, Any, Any]
    averages: Averages
    # The number of rows that were written before an observation, action or reward was
    # not finite, after which nothing changes any more; -1 while all are.
    failed_row: Int[Array, ""]


def _count(default: int) -> Any:
    return eqx.field(default=default, static=True, converter=plain_integer)


class Trainer(eqx.Module):
    """Alternates between steps in environments and updates of an agent.

    An iteration is `steps_per_iteration` steps of every environment, then
    `updates_per_iteration` updates. The first iterations, until `warmup_steps`
    environment steps are taken, act at random and make no update. All methods are pure
    and go under `equinox.filter_vmap` with `counts` unbatched; `eqrl.train` is the
    entry point with progress and errors.

    Should an observation, an action or a reward become `nan` or infinite, nothing of
    that step is kept, and nothing changes from then on. The metric `nonfinite` says how
    many environment steps of a call were lost in this way.
    """

    num_envs: int = _count(1)
    batch_size: int = _count(256)
    capacity: int = _count(100_000)
    warmup_steps: int = _count(1_000)
    steps_per_iteration: int = _count(1)
    updates_per_iteration: int = _count(1)

    def __check_init__(self) -> None:
        for name in (
            "num_envs",
            "batch_size",
            "capacity",
            "warmup_steps",
            "steps_per_iteration",
        ):
            check_integer(name, getattr(self, name), least=1)
        check_integer("updates_per_iteration", self.updates_per_iteration, least=0)
        if self.capacity < self.num_envs:
            raise ValueError(
                f"`capacity={self.capacity}` is shared by `num_envs={self.num_envs}` "
                "environments and must hold at least one transition of each."
            )

    @property
    def steps_of_iteration(self) -> int:
        """Environment steps in an iteration, summed over the environments."""
        return self.num_envs * self.steps_per_iteration

    def init(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        *,
        key: PRNGKeyArray,
        agent_state: State | None = None,
    ) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts]:
        """An agent at the beginning of its first episodes.

        It has learnt nothing, or what is in `agent_state`, which is copied. Raises a
        `ValueError` where agent, environment and trainer do not fit.
        """
        check_env(env)
        check_sizes(
            num_envs=self.num_envs,
            batch_size=self.batch_size,
            capacity=self.capacity,
            warmup_steps=self.warmup_steps,
            sequence_length=agent.sequence_length,
        )
        agent_key, start_key = jr.split(key)
        state = agent.init(env.spec, key=agent_key)
        if agent_state is not None:
            check_same_shapes("agent_state", state, agent_state)
            state = tree_copy(agent_state)
        actors = start(agent, state, env, num_envs=self.num_envs, key=start_key)
        check_action(agent, state, actors, env.spec, key=start_key)
        _, transitions = eqx.filter_eval_shape(
            interact, agent, state, env, actors, mode="sample", key=start_key
        )
        item = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), transitions
        )
        replay = self._buffer(agent).init(item, self.num_envs)
        zero = jnp.zeros((), int)
        counts = Counts(updates=zero, rows_written=zero + 0, rows_kept=zero + 0)
        trainer_state = TrainerState(
            agent=state, actors=actors, replay=replay, failed=jnp.array(False)
        )
        return trainer_state, counts

    def step(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        state: TrainerState[State, EnvState, Memory, Extras],
        counts: Counts,
        *,
        key: PRNGKeyArray,
    ) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts, Metrics]:
        """One iteration: `run` with the least `num_steps` there is."""
        return self.run(
            agent, env, state, counts, num_steps=self.steps_of_iteration, key=key
        )

    def run(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        state: TrainerState[State, EnvState, Memory, Extras],
        counts: Counts,
        *,
        num_steps: int | Int[Array, ""],
        key: PRNGKeyArray,
        alone: bool = False,
    ) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts, Metrics]:
        """A number of iterations.

        **Arguments:**

        - `agent`, `env`: as in `init`.
        - `state`, `counts`: from `init` or from an earlier call.
        - `num_steps`: environment steps summed over the environments, a whole number of
            iterations. As an array it may differ between calls of one compilation.
        - `key`: the same at each call of one training. What is drawn at a step depends
            on `key` and `counts` only, so how a training is cut into calls makes no
            difference.
        - `alone`: promises that this is not mapped over by `vmap`, which is faster and
            makes no other difference.

        **Returns:**

        The state and the counts after it, and the metrics averaged over it.
        """
        if not isinstance(num_steps, jax.Array):
            self.check_num_steps(num_steps)
        num_iterations = jnp.asarray(num_steps // self.steps_of_iteration, int)
        warmup_left = jnp.minimum(self._warmup_left(counts), num_iterations)
        interact_key, update_key = jr.fold_in(key, 0), jr.fold_in(key, 1)

        def warm_up(index: Int[Array, ""], progress: _Progress) -> _Progress:
            return self._collect(
                agent,
                env,
                progress,
                self.counts_after(counts, index),
                mode="random",
                key=interact_key,
            )

        def learn(index: Int[Array, ""], progress: _Progress) -> _Progress:
            before = self.counts_after(counts, index)
            progress = self._collect(
                agent, env, progress, before, mode="sample", key=interact_key
            )
            return self._learn(agent, progress, before, key=update_key, alone=alone)

        names = self._metric_names(agent, state, counts, key=update_key)
        progress = _Progress(
            state=state,
            averages=no_averages(names),
            failed_row=jnp.where(state.failed, counts.rows_written, -1),
        )
        progress = filter_fori_loop(0, warmup_left, warm_up, progress)
        progress = filter_fori_loop(warmup_left, num_iterations, learn, progress)
        counts = self.counts_after(counts, num_iterations)
        lost = jnp.where(
            progress.failed_row < 0, 0, counts.rows_written - progress.failed_row
        )
        state = eqx.tree_at(
            lambda state: state.failed, progress.state, progress.failed_row >= 0
        )
        metrics = progress.averages.result()
        metrics["nonfinite"] = (lost * self.num_envs).astype(float)
        return state, counts, metrics

    def counts_after(
        self, counts: Counts, num_iterations: int | Int[Array, ""]
    ) -> Counts:
        """What `counts` become in a number of iterations."""
        updating = jnp.maximum(num_iterations - self._warmup_left(counts), 0)
        return Counts(
            updates=counts.updates + updating * self.updates_per_iteration,
            rows_written=counts.rows_written
            + num_iterations * self.steps_per_iteration,
            rows_kept=counts.rows_kept,
        )

    def _warmup_left(self, counts: Counts) -> Int[Array, ""]:
        warmup_iterations = math.ceil(self.warmup_steps / self.steps_of_iteration)
        done = counts.rows_written // self.steps_per_iteration
        return jnp.maximum(warmup_iterations - done, 0)

    def check_num_steps(self, num_steps: int) -> None:
        """Raises a `ValueError` unless this is a whole number of iterations."""
        size = self.steps_of_iteration
        check_integer("num_steps", num_steps, least=0)
        if num_steps % size != 0:
            raise ValueError(
                f"`num_steps={num_steps}` must be a whole number of iterations, each "
                f"of num_envs * steps_per_iteration = {self.num_envs} * "
                f"{self.steps_per_iteration} = {size} environment steps; the nearest "
                f"are {num_steps // size * size} and {(num_steps // size + 1) * size}."
            )

    def _collect(
        self,
        agent: AbstractAgent[Any, Any, Any],
        env: AbstractEnv[Any],
        progress: _Progress,
        counts: Counts,
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> _Progress:
        buffer = self._buffer(agent)

        def step(index: Int[Array, ""], progress: _Progress) -> _Progress:
            state = progress.state
            now = eqx.tree_at(
                lambda c: c.rows_written, counts, counts.rows_written + index
            )
            actors, transitions = interact(
                agent,
                state.agent,
                env,
                state.actors,
                mode=mode,
                key=jr.fold_in(key, now.rows_written),
            )
            going_on = (progress.failed_row < 0) & all_finite(transitions)
            failed_row = jnp.where(
                going_on | (progress.failed_row >= 0),
                progress.failed_row,
                now.rows_written,
            )
            metrics = episode_metrics(state.actors, transitions, going_on)
            observed = agent.observe(state.agent, transitions)
            state = TrainerState(
                agent=tree_where(going_on, observed, state.agent),
                actors=tree_where(going_on, actors, state.actors),
                replay=buffer.add(state.replay, transitions, now, keep=going_on),
                failed=state.failed,
            )
            return _Progress(
                state=state,
                averages=progress.averages.add(metrics),
                failed_row=failed_row,
            )

        return filter_fori_loop(0, self.steps_per_iteration, step, progress)

    def _learn(
        self,
        agent: AbstractAgent[Any, Any, Any],
        progress: _Progress,
        counts: Counts,
        *,
        key: PRNGKeyArray,
        alone: bool,
    ) -> _Progress:
        # Nothing is learnt behind a failure. Alone, no update is made. Mapped over a
        # population, a number of updates of each member's own would make the number of
        # the update a member's own as well, so what is learnt is thrown away, which
        # costs some percent.
        buffer = self._buffer(agent)
        filled = eqx.tree_at(
            lambda c: c.rows_written,
            counts,
            counts.rows_written + self.steps_per_iteration,
        )
        replay = progress.state.replay

        going_on = progress.failed_row < 0

        def update(
            index: Int[Array, ""], carry: tuple[Any, Averages]
        ) -> tuple[Any, Averages]:
            state, averages = carry
            step = counts.updates + index
            sample_key, update_key = jr.split(jr.fold_in(key, step))
            batch = buffer.sample(replay, filled, key=sample_key)
            new_state, metrics = agent.update(state, batch, step=step, key=update_key)
            after = (new_state, averages.add(metrics))
            return after if alone else tree_where(going_on, after, carry)

        # XLA unrolls a loop that it knows to be short, and then fuses the write of a
        # row into the reads of a batch, for which it keeps, so copies, the replay from
        # before the write. It does not know that this condition always holds.
        possible = going_on if alone else counts.updates >= 0
        num_updates = jnp.where(possible, self.updates_per_iteration, 0)
        agent_state, averages = filter_fori_loop(
            0, num_updates, update, (progress.state.agent, progress.averages)
        )
        return _Progress(
            state=eqx.tree_at(lambda s: s.agent, progress.state, agent_state),
            averages=averages,
            failed_row=progress.failed_row,
        )

    def _metric_names(
        self,
        agent: AbstractAgent[Any, Any, Any],
        state: TrainerState[Any, Any, Any, Any],
        counts: Counts,
        *,
        key: PRNGKeyArray,
    ) -> list[str]:
        def metrics(
            state: TrainerState[Any, Any, Any, Any], counts: Counts, key: PRNGKeyArray
        ) -> Metrics:
            batch = self._buffer(agent).sample(state.replay, counts, key=key)
            _, metrics = agent.update(
                state.agent, batch, step=counts.updates, key=jr.fold_in(key, 0)
            )
            transitions = jax.tree.map(lambda x: x[:, 0], state.replay.data)
            return metrics | episode_metrics(state.actors, transitions, jnp.array(True))

        shapes = eqx.filter_eval_shape(metrics, state, counts, key)
        check_metrics(shapes)
        return list(shapes)

    def _buffer(self, agent: AbstractAgent[Any, Any, Any]) -> ReplayBuffer:
        return ReplayBuffer(
            capacity=self.capacity,
            batch_size=self.batch_size,
            sequence_length=agent.sequence_length,
        )


Trainer.__init__.__doc__ = """**Arguments:**

- `num_envs`: environments stepped side by side, at least 1.
- `batch_size`: elements of a batch, each of the agent's `sequence_length` transitions.
- `capacity`: transitions that the replay holds in total; each environment has an equal
    share.
- `warmup_steps`: environment steps, summed over the environments, which are taken at
    random before the first update; rounded up to a whole number of iterations.
- `steps_per_iteration`: steps of every environment in an iteration, at least 1.
- `updates_per_iteration`: updates in an iteration; 0 only collects.
"""
