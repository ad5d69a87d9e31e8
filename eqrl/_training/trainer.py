import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Generic, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._interaction.actors import Actors, interact, start
from .._interaction.fit import check_action_fits
from .._pytree.control_flow import filter_fori_loop
from .._pytree.fields import (
    PositiveInt,
    check_fields,
    checked,
    shown,
    static_choice,
    static_integer,
)
from .._pytree.tree import (
    check_same_shapes,
    map_parts,
    parts,
    show_values,
    tree_copy,
    tree_where,
)
from .._types.custom_types import EnvState, Extras, Memory, Metrics, Mode, State
from .._types.data import Transition
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import check_env
from ..envs._host import release
from ..envs._wrappers import stacking_of
from .frames import ROWS_PER_END
from .iteration import (
    Progress,
    UnfinishedRow,
    collect,
    empty_row,
    episode_metrics,
    names_of_updates,
    restore_agent,
    update,
)
from .replay import (
    AbstractReplay,
    AnyReplay,
    LatestRows,
    MakeReplay,
    ReplayBuffer,
    ReplayState,
    truncate_last_row,
    whole_observations,
)
from .schedule import Counts, Schedule, first_counts


class TrainerState(eqx.Module, Generic[State, EnvState, Memory, Extras]):
    """Everything that changes while an agent trains, except `Counts`."""

    agent: State
    actors: Actors[EnvState, Memory]
    # The state of a custom replay is whatever its `init` returns.
    replay: ReplayState[Transition[Extras]] | Any
    failed: Bool[Array, ""]


TrainerState.__init__.__doc__ = """**Arguments:**

- `agent`: the agent's state.
- `actors`: the agent in its environments, in mid-episode; a stack of `num_envs`.
- `replay`: past transitions, a `ReplayState` unless the trainer has another replay.
- `failed`: whether an observation, a descriptor, an action, a reward or the agent's
    state became `nan` or infinite, or a metric of an update infinite. If so, nothing
    here has changed since.
"""

AnyTrainerState = TrainerState[Any, Any, Any, Any]


class Trainer(eqx.Module):
    """Alternates between steps in environments and updates of an agent.

    An iteration is `steps_per_iteration` steps of every environment, then
    `updates_per_iteration` updates. The first iterations, until `warmup_steps`
    environment steps are taken, act at random, or according to `warmup_mode`, and make
    no update. All methods are pure and may be mapped by `equinox.filter_vmap` with
    `counts` unbatched; `eqrl.train` is the entry point with progress and errors.

    If an observation, a descriptor, an action or a reward becomes `nan` or infinite,
    that step is discarded and training freezes. It also freezes if a metric of an
    update is infinite, or if the agent's state is not finite at the end of a call. If
    the agent diverged, its state is restored to that from before the call, since the
    latest one would diverge again. The metric that diverged first is `nan` or infinite
    in the averages. The metric `nonfinite` is the number of environment steps of a call
    from the step, or the iteration, of the failure on.
    """

    num_envs: int = static_integer(1, least=1)
    batch_size: int = static_integer(256, least=1)
    capacity: int = static_integer(100_000, least=1)
    warmup_steps: int = static_integer(1_000, least=0)
    steps_per_iteration: int = static_integer(1, least=1)
    updates_per_iteration: int = static_integer(1, least=0)
    warmup_mode: Literal["random", "sample"] = static_choice(
        "random", ("random", "sample")
    )
    make_replay: MakeReplay = eqx.field(default=ReplayBuffer, static=True)

    def __repr__(self) -> str:
        return show_values(self)

    def __check_init__(self) -> None:
        check_fields(self)
        if self.capacity < self.num_envs:
            raise ValueError(
                f"`capacity={self.capacity}` is shared by `num_envs={self.num_envs}` "
                "environments and must hold at least one transition of each."
            )

    @staticmethod
    @checked
    def on_policy(
        *,
        num_envs: PositiveInt,
        num_steps: PositiveInt,
        make_replay: MakeReplay = LatestRows,
    ) -> "Trainer":
        """The trainer for an agent that learns on-policy, such as `eqrl.PPO`.

        An iteration is a rollout, then one update on all of it. There is no warm-up:
        the first action is the policy's own.

        **Arguments:**

        - `num_envs`: environments stepped side by side, at least 1.
        - `num_steps`: steps of every environment in a rollout, at least 1.
        - `make_replay`: as in `eqrl.Trainer`; each batch of its replay must be a whole
            rollout.
        """
        return Trainer(
            num_envs=num_envs,
            batch_size=num_envs,
            capacity=num_envs * num_steps,
            warmup_steps=0,
            steps_per_iteration=num_steps,
            updates_per_iteration=1,
            make_replay=make_replay,
        )

    @property
    def is_on_policy(self) -> bool:
        """Whether it is a trainer that `on_policy` makes."""
        return not self.differences_from_on_policy()

    def differences_from_on_policy(self) -> list[str]:
        """The names of the arguments that a rollout does not allow."""
        fitting = Trainer.on_policy(
            num_envs=self.num_envs,
            num_steps=self.steps_per_iteration,
            make_replay=self.make_replay,
        )
        wrong = [
            field.name
            for field in dataclasses.fields(Trainer)
            if getattr(self, field.name) != getattr(fitting, field.name)
        ]
        return [*wrong, "make_replay"] if self.make_replay is ReplayBuffer else wrong

    @property
    def schedule(self) -> Schedule:
        """When it steps and when it updates."""
        return Schedule(
            num_envs=self.num_envs,
            capacity=self.capacity,
            warmup_steps=self.warmup_steps,
            steps_per_iteration=self.steps_per_iteration,
            updates_per_iteration=self.updates_per_iteration,
        )

    @property
    def steps_of_iteration(self) -> int:
        """Environment steps in an iteration, summed over the environments."""
        return self.schedule.steps_of_iteration

    def replay(self, sequence_length: int | None) -> AnyReplay:
        """The replay for an agent with this `sequence_length`."""
        replay = self.make_replay(
            capacity=self.capacity,
            batch_size=self.batch_size,
            sequence_length=sequence_length,
        )
        if not isinstance(replay, AbstractReplay):
            raise ValueError(
                f"`make_replay` gives a {type(replay).__name__}; it must give an "
                "`eqrl.AbstractReplay`."
            )
        return replay

    @checked
    def init(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        *,
        key: PRNGKeyArray,
        agent_state: State | None = None,
    ) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts]:
        """An agent at the beginning of its first episodes.

        Its state is the initial one, or a copy of `agent_state`. Agent, environment and
        trainer must fit each other; otherwise a `ValueError` is raised.
        """
        check_env(env)
        check_sizes(self, sequence_length=agent.sequence_length)
        agent_key, start_key = jr.split(key)
        state = agent.init(env.spec, key=agent_key)
        if agent_state is not None:
            check_same_shapes("agent_state", state, agent_state)
            state = tree_copy(agent_state)
        actors = start(agent, state, env, num_envs=self.num_envs, key=start_key)
        _, transitions = eqx.filter_eval_shape(
            interact, agent, state, env, actors, mode="sample", key=start_key
        )
        item = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), transitions
        )
        check_action_fits(item.action, env.spec)
        replay = self.replay(agent.sequence_length)
        max_steps = env.spec.max_steps
        # With shorter episodes, a replay would lose rows; a rollout loses none.
        is_long = max_steps is None or max_steps >= ROWS_PER_END
        if isinstance(replay, LatestRows) or (
            isinstance(replay, ReplayBuffer) and is_long
        ):
            stored = replay.init(item, self.num_envs, stacking=stacking_of(env))
        else:
            stored = replay.init(item, self.num_envs)
        trainer_state = TrainerState(
            agent=state, actors=actors, replay=stored, failed=jnp.array(False)
        )
        return trainer_state, first_counts()

    def restart(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        state: TrainerState[State, EnvState, Memory, Extras],
        counts: Counts,
        *,
        key: PRNGKeyArray,
    ) -> TrainerState[State, EnvState, Memory, Extras]:
        """The state, with new episodes in all environments.

        The last transition of each is marked as truncated, unless it is terminated, in
        each `eqrl.ReplayState` of the replay.

        **Arguments:**

        - `agent`, `env`: as in `init`.
        - `state`, `counts`: from `init` or from an earlier call.
        - `key`: for the environments and the agent's memory.
        """
        key = jr.fold_in(jr.fold_in(key, 2), counts.rows_written.astype(jnp.uint32))
        # A custom replay may contain several.
        truncate = lambda ring: truncate_last_row(ring, counts)
        replay = map_parts(truncate, state.replay, ReplayState)
        release(state.actors.env_state, abandoned=True)
        return TrainerState(
            agent=state.agent,
            actors=start(agent, state.agent, env, num_envs=self.num_envs, key=key),
            replay=replay,
            failed=state.failed,
        )

    def step(
        self,
        agent: AbstractAgent[State, Memory, Extras],
        env: AbstractEnv[EnvState],
        state: TrainerState[State, EnvState, Memory, Extras],
        counts: Counts,
        *,
        key: PRNGKeyArray,
    ) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts, Metrics]:
        """One iteration: `run` with the smallest possible `num_steps`."""
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
    ) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts, Metrics]:
        """A number of iterations.

        **Arguments:**

        - `agent`, `env`: as in `init`.
        - `state`, `counts`: from `init` or from an earlier call.
        - `num_steps`: environment steps summed over the environments, a whole number of
            iterations. As an array it may differ between calls of one compilation.
        - `key`: the same at each call of one training. Random draws depend only on
            `key` and `counts`, not on how training is split into calls.

        **Returns:**

        The state and the counts after the call, and the metrics averaged over it.
        """
        if not isinstance(num_steps, jax.Array):
            self.check_num_steps(num_steps)
            self.schedule.check_call("num_steps", num_steps)
        piece = Piece(
            num_steps=jnp.asarray(num_steps, int),
            row=begin_row(self, agent, env, state, counts),
            ends_row=jnp.array(True),
        )
        state, counts, ran = run_piece(
            self, agent, env, state, counts, state.agent, piece, key=key, mapped=True
        )
        return state, counts, ran.metrics

    def counts_after(
        self, counts: Counts, num_iterations: int | Int[Array, ""]
    ) -> Counts:
        """The counts after a number of iterations."""
        return self.schedule.counts_after(counts, num_iterations)

    def check_num_steps(self, num_steps: int) -> None:
        """Checks that these are whole iterations, or raises a `ValueError`."""
        self.schedule.check_num_steps(num_steps)


Trainer.__init__.__doc__ = """**Arguments:**

- `num_envs`: environments stepped side by side, at least 1.
- `batch_size`: elements of a batch, each of the agent's `sequence_length` transitions.
- `capacity`: transitions that the replay holds in total; each environment has an equal
    share.
- `warmup_steps`: environment steps, summed over the environments, that are taken at
    random before the first update; rounded up to a whole number of iterations. 0 only
    for agents that learn on-policy.
- `steps_per_iteration`: steps of every environment in an iteration, at least 1.
- `updates_per_iteration`: updates in an iteration; 0 only collects.
- `warmup_mode`: how to act in the warm-up: `"random"` draws uniform actions, `"sample"`
    samples the policy, untrained unless `agent_state` is given.
- `make_replay`: makes the replay, an `eqrl.AbstractReplay`; called as
    `make_replay(capacity=..., batch_size=..., sequence_length=...)`. It is static, so
    pass a class or a frozen dataclass; equal ones share a compilation.
"""


class Piece(NamedTuple):
    """Part of a row of metrics that one call runs.

    - `num_steps`: environment steps, a whole number of iterations.
    - `row`: the row before them.
    - `ends_row`: whether the row ends with them. Only then must the agent's state be
        finite, since it must make no difference how a row is split.
    """

    num_steps: Int[Array, ""]
    row: UnfinishedRow
    ends_row: Bool[Array, ""]


class Ran(eqx.Module):
    """Results of a piece besides the training state.

    - `row`: the row after it.
    - `metrics`: those of the row, if it ends here.
    - `diverged`: whether each metric of updates is the one that diverged first.
    """

    row: UnfinishedRow
    metrics: Metrics
    diverged: Bool[Array, " metrics"]


def begin_row(
    trainer: Trainer,
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    state: TrainerState[State, EnvState, Memory, Extras],
    counts: Counts,
) -> UnfinishedRow:
    """The beginning of a row of metrics.

    The state must be one that `Trainer.init` returns for these arguments, and all
    metrics must be floats with free names; otherwise a `ValueError` is raised.
    """
    replay = trainer.replay(agent.sequence_length)
    with _explaining_misfits(trainer, agent, env, state):
        of_updates = names_of_updates(
            agent, replay, state.agent, state.replay, counts, key=jr.key(0)
        )
    actors = state.actors
    of_episodes = eqx.filter_eval_shape(
        episode_metrics, actors.timestep >= 0, actors.timestep, actors.episode_return
    )
    return empty_row(of_updates, list(of_episodes))


def run_piece(
    trainer: Trainer,
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    state: TrainerState[State, EnvState, Memory, Extras],
    counts: Counts,
    first: State,
    piece: Piece,
    *,
    key: PRNGKeyArray,
    mapped: bool,
) -> tuple[TrainerState[State, EnvState, Memory, Extras], Counts, Ran]:
    """Trains for a part of a row of metrics.

    **Arguments:**

    - `first`: the agent's state at the beginning of the row, to reset an agent that
        diverges in it; any value if the row begins here.
    - `mapped`: whether `vmap` maps over this; without `vmap`, it is faster.
    - The others are those of `Trainer.run`.
    """
    schedule, steps = trainer.schedule, trainer.steps_per_iteration
    replay = trainer.replay(agent.sequence_length)
    num_iterations = piece.num_steps // schedule.steps_of_iteration
    warmup_left = jnp.minimum(schedule.warmup_left(counts.rows_written), num_iterations)
    interact_key, update_key = jr.fold_in(key, 0), jr.fold_in(key, 1)

    def collect_rows(index: Int[Array, ""], progress: Progress, mode: Mode) -> Progress:
        return collect(
            agent,
            env,
            replay,
            progress,
            schedule.counts_after(counts, index),
            num_steps=steps,
            mode=mode,
            mapped=mapped,
            key=interact_key,
        )

    def learn(index: Int[Array, ""], progress: Progress) -> Progress:
        return update(
            agent,
            replay,
            collect_rows(index, progress, "sample"),
            # Batches may hold the rows that were just written.
            schedule.counts_after(counts, index).after_rows(steps),
            num_steps=steps,
            num_updates=trainer.updates_per_iteration,
            mapped=mapped,
            key=update_key,
        )

    begins = piece.row.num_rows == 0
    first = tree_where(begins, state.agent, first)
    progress = Progress(
        agent=state.agent,
        actors=state.actors,
        replay=state.replay,
        # A member that failed in an earlier row stays as it was.
        row=piece.row.after(begins & state.failed),
    )
    with _explaining_misfits(trainer, agent, env, state):
        # XLA cannot tell that a loop over a traced number is empty, and would compile
        # it.
        if trainer.warmup_steps > 0:
            warm_up = lambda index, progress: collect_rows(
                index, progress, trainer.warmup_mode
            )
            progress = filter_fori_loop(0, warmup_left, warm_up, progress)
        progress = filter_fori_loop(warmup_left, num_iterations, learn, progress)
    progress = restore_agent(progress, first, ends_row=piece.ends_row, num_steps=steps)
    row = progress.row
    state = TrainerState(
        agent=progress.agent,
        actors=progress.actors,
        replay=progress.replay,
        failed=row.failure.happened,
    )
    ran = Ran(row, row.result(trainer.num_envs), row.of_updates.diverged())
    return state, schedule.counts_after(counts, num_iterations), ran


def without_rows(state: AnyTrainerState, number: int) -> AnyTrainerState:
    """The state without the last `number` rows, which are of an unfinished rollout.

    Its episodes continue, so frames that later observations share with earlier ones
    must be found by the new numbers of their rows.
    """
    replay = state.replay
    if number == 0 or not isinstance(replay, ReplayState) or replay.frames is None:
        return state
    frames = replay.frames.from_row(jnp.asarray(number, int))
    return eqx.tree_at(lambda x: x.replay.frames, state, frames)


def fitting(trainer: Trainer, state: AnyTrainerState) -> Trainer:
    """The trainer, with a replay of whole observations if the state has such a replay.

    `fill_replay` does not know which frames an environment's observations share.
    """
    rings = parts(state.replay, ReplayState)
    has_frames = any(ring.frames is not None for ring in rings)
    return trainer if has_frames else without_frames(trainer)


def without_frames(trainer: Trainer) -> Trainer:
    """The trainer, with whole observations if its replay is the library's."""
    make = trainer.make_replay
    # With options, such as those that `SMERL` needs, it is a partial application.
    if getattr(make, "func", make) is not ReplayBuffer:
        return trainer
    return dataclasses.replace(trainer, make_replay=whole_observations(make))


@contextlib.contextmanager
def _explaining_misfits(
    trainer: Trainer, agent: AnyAgent, env: AnyEnv, state: object
) -> Iterator[None]:
    """Replaces a tracing error with a clearer one if the state does not fit."""
    if not isinstance(state, TrainerState):
        raise ValueError(
            f"`state` is a {type(state).__name__}; it must be the `TrainerState` that "
            "`Trainer.init` or an earlier call gives, such as `solution.trainer_state`."
        )
    shape = state.actors.timestep.shape
    if len(shape) != 1:
        raise ValueError(
            f"`state` is a stack: its environments have the axes {shape}, not "
            f"{(trainer.num_envs,)}. Take one by `eqrl.member(state, index)`, or map "
            "over it by `equinox.filter_vmap`."
        )
    if shape != (trainer.num_envs,):
        raise ValueError(
            f"`state` has {shape[0]} environments, but `num_envs={trainer.num_envs}`; "
            "resume with the trainer that it began with."
        )
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        # Shapes are compared only after an error, since tracing `init` takes a while.
        init = fitting(trainer, state).init
        try:
            expected, _ = eqx.filter_eval_shape(init, agent, env, key=jr.key(0))
        except Exception:
            raise error from None
        check_same_shapes("state", expected, state)
        raise


def check_sizes(trainer: Trainer, *, sequence_length: int | None) -> None:
    """Checks that an agent with this `sequence_length` can learn with a trainer."""
    wrong = trainer.differences_from_on_policy()
    if sequence_length is not None and not wrong:
        raise ValueError(
            "The agent learns from a replay, but `eqrl.Trainer.on_policy` holds one "
            f"rollout only; use `eqrl.Trainer(num_envs={trainer.num_envs})`."
        )
    if sequence_length is not None:
        trainer.schedule.check_sequences(sequence_length, trainer.batch_size)
    elif wrong:
        given = ", ".join(f"{name}={shown(getattr(trainer, name))}" for name in wrong)
        raise ValueError(
            "The agent learns on-policy, from all the steps of an iteration and once, "
            f"which a trainer with `{given}` does not give it; use `eqrl.Trainer."
            f"on_policy(num_envs={trainer.num_envs}, num_steps=...)`."
        )
