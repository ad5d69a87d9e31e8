import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent, after_act
from .._interaction.actors import Actors, interact, start
from .._interaction.fit import check_action_fits
from .._pytree.arguments import checked
from .._pytree.control_flow import filter_fori_loop
from .._pytree.fields import PositiveInt, check_fields, shown, static_integer
from .._pytree.tree import (
    check_same_shapes,
    show_values,
    take_element,
    tree_copy,
    tree_is_finite,
    tree_where,
)
from .._types.custom_types import EnvState, Extras, Memory, Metrics, Mode, State
from .._types.data import EnvSpec, Transition
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import check_env
from .iteration import (
    FailureReport,
    Progress,
    UnfinishedRow,
    check_metrics,
    collect,
    empty_row,
    episode_metrics,
    names_of_updates,
    update,
)
from .replay import (
    AbstractReplay,
    AnyReplay,
    LatestRows,
    MakeReplay,
    ReplayBuffer,
    ReplayState,
)
from .schedule import Counts, Schedule


class TrainerState(eqx.Module, Generic[State, EnvState, Memory, Extras]):
    """All that changes while an agent trains, `Counts` excepted."""

    agent: State
    actors: Actors[EnvState, Memory]
    # The state of a custom replay is what its `init` gives.
    replay: ReplayState[Transition[Extras]] | Any
    failed: Bool[Array, ""]


TrainerState.__init__.__doc__ = """**Arguments:**

- `agent`: the agent's state.
- `actors`: the agent in its environments, in mid-episode; a stack of `num_envs`.
- `replay`: past transitions, a `ReplayState` unless the trainer has another replay.
- `failed`: whether an observation, an action, a reward or the agent's state became
    `nan` or infinite. If so, nothing here has changed since.
"""

AnyTrainerState = TrainerState[Any, Any, Any, Any]


class Trainer(eqx.Module):
    """Alternates between steps in environments and updates of an agent.

    An iteration is `steps_per_iteration` steps of every environment, then
    `updates_per_iteration` updates. The first iterations, until `warmup_steps`
    environment steps are taken, act at random and make no update. All methods are pure
    and may be mapped by `equinox.filter_vmap` with `counts` unbatched; `eqrl.train` is
    the entry point with progress and errors.

    If an observation, an action or a reward becomes `nan` or infinite, that step is
    discarded and training freezes. It also freezes if a metric of an update is
    infinite, or if the agent's state is not finite at the end of a call. If the agent
    diverged, its state is restored to that from before the call, since the latest one
    would diverge again. The metric that diverged first is `nan` or infinite in the
    averages. The metric `nonfinite` is the number of environment steps of a call from
    the step, or the iteration, at which it happened.
    """

    num_envs: int = static_integer(1, least=1)
    batch_size: int = static_integer(256, least=1)
    capacity: int = static_integer(100_000, least=1)
    warmup_steps: int = static_integer(1_000, least=0)
    steps_per_iteration: int = static_integer(1, least=1)
    updates_per_iteration: int = static_integer(1, least=0)
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
        - `make_replay`: as in `eqrl.Trainer`; what it makes gives the whole rollout for
            a batch.
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
        """Whether it is one that `on_policy` makes."""
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
            rows=self.capacity // self.num_envs,
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

        Its state is the initial one, or a copy of `agent_state`. Raises a `ValueError`
        unless agent, environment and trainer fit each other.
        """
        check_env(env)
        check_sizes(self, sequence_length=agent.sequence_length)
        agent_key, start_key = jr.split(key)
        state = agent.init(env.spec, key=agent_key)
        if agent_state is not None:
            check_same_shapes("agent_state", state, agent_state)
            state = tree_copy(agent_state)
        actors = start(agent, state, env, num_envs=self.num_envs, key=start_key)
        _check_action(agent, state, actors, env.spec, key=start_key)
        _, transitions = eqx.filter_eval_shape(
            interact, agent, state, env, actors, mode="sample", key=start_key
        )
        item = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), transitions
        )
        replay = self.replay(agent.sequence_length).init(item, self.num_envs)
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
        - `key`: the same at each call of one training. Random draws depend on `key` and
            `counts` only, so how a training is cut into calls makes no difference.

        **Returns:**

        The state and the counts after it, and the metrics averaged over it.
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
- `warmup_steps`: environment steps, summed over the environments, which are taken at
    random before the first update; rounded up to a whole number of iterations. 0 only
    for agents that learn on-policy.
- `steps_per_iteration`: steps of every environment in an iteration, at least 1.
- `updates_per_iteration`: updates in an iteration; 0 only collects.
- `make_replay`: makes the replay, an `eqrl.AbstractReplay`; called as
    `make_replay(capacity=..., batch_size=..., sequence_length=...)`. It is static:
    give a class, or a frozen dataclass: equal ones share a compilation.
"""


class Piece(eqx.Module):
    """Part of a row of metrics that one call runs.

    - `num_steps`: environment steps, a whole number of iterations.
    - `row`: what the row consists of before them.
    - `ends_row`: whether it ends with them. That the agent's state is finite is looked
        at there, since where a row is cut must make no difference.
    """

    num_steps: Int[Array, ""]
    row: UnfinishedRow
    ends_row: Bool[Array, ""]


class Ran(eqx.Module):
    """Results of a piece besides the training state.

    - `row`: what the row consists of now.
    - `metrics`, `report`: those of the row, once it has ended.
    """

    row: UnfinishedRow
    metrics: Metrics
    report: FailureReport


def begin_row(
    trainer: Trainer,
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    state: TrainerState[State, EnvState, Memory, Extras],
    counts: Counts,
) -> UnfinishedRow:
    """The beginning of a row of metrics.

    Raises a `ValueError` unless the state is one that `Trainer.init` gives for these
    arguments, and all metrics are floats with free names.
    """
    _check_num_envs(trainer, state)
    replay = trainer.replay(agent.sequence_length)
    with _explaining_misfits(trainer, agent, env, state):
        of_updates = names_of_updates(
            agent, replay, state.agent, state.replay, counts, key=jr.key(0)
        )
    actors = state.actors
    of_episodes = eqx.filter_eval_shape(
        episode_metrics, actors.timestep >= 0, actors.timestep, actors.episode_return
    )
    check_metrics(of_episodes)
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
    - `mapped`: whether `vmap` maps over this, which is faster if it does not.
    - The others are those of `Trainer.run`.
    """
    rows_before = piece.row.num_rows
    begins = rows_before == 0
    first = tree_where(begins, state.agent, first)
    progress = Progress(
        agent=state.agent,
        actors=state.actors,
        replay=state.replay,
        averages=piece.row.averages,
        watch=piece.row.watch,
        # An earlier row may have failed.
        failure=piece.row.failure.or_at(
            begins & state.failed,
            row=rows_before,
            kept_rows=rows_before,
            in_agent=jnp.array(False),
        ),
    )
    num_iterations = piece.num_steps // trainer.steps_of_iteration
    with _explaining_misfits(trainer, agent, env, state):
        progress = _iterate(
            trainer,
            agent,
            env,
            progress,
            counts,
            num_iterations=num_iterations,
            rows_before=rows_before,
            key=key,
            mapped=mapped,
        )
    steps = trainer.steps_per_iteration
    num_rows = rows_before + num_iterations * steps
    failure = progress.failure.or_at(
        piece.ends_row & ~tree_is_finite(progress.agent),
        row=jnp.maximum(num_rows - steps, 0),
        kept_rows=num_rows,
        in_agent=jnp.array(True),
    )
    row = UnfinishedRow(
        averages=progress.averages,
        watch=progress.watch,
        failure=failure,
        num_rows=num_rows,
    )
    state = TrainerState(
        # The state just before the one that diverged would diverge again: back to the
        # last one whose updates were all finite.
        agent=tree_where(failure.in_agent, first, progress.agent),
        actors=progress.actors,
        replay=progress.replay,
        failed=failure.happened,
    )
    counts = trainer.schedule.counts_after(counts, num_iterations)
    metrics, report = _finish(trainer, row)
    return state, counts, Ran(row=row, metrics=metrics, report=report)


def _iterate(
    trainer: Trainer,
    agent: AnyAgent,
    env: AnyEnv,
    progress: Progress,
    counts: Counts,
    *,
    num_iterations: Int[Array, ""],
    rows_before: Int[Array, ""],
    key: PRNGKeyArray,
    mapped: bool,
) -> Progress:
    """Makes iterations: of the warm-up as long as it lasts, then such that learn."""
    replay = trainer.replay(agent.sequence_length)
    schedule = trainer.schedule
    steps = trainer.steps_per_iteration
    warmup_left = jnp.minimum(schedule.warmup_left(counts.rows_written), num_iterations)
    interact_key, update_key = jr.fold_in(key, 0), jr.fold_in(key, 1)

    def collect_rows(index: Int[Array, ""], progress: Progress, mode: Mode) -> Progress:
        return collect(
            agent,
            env,
            replay,
            progress,
            schedule.counts_after(counts, index),
            row=rows_before + index * steps,
            num_steps=steps,
            mode=mode,
            mapped=mapped,
            key=interact_key,
        )

    def warm_up(index: Int[Array, ""], progress: Progress) -> Progress:
        return collect_rows(index, progress, "random")

    def learn(index: Int[Array, ""], progress: Progress) -> Progress:
        return update(
            agent,
            replay,
            collect_rows(index, progress, "sample"),
            schedule.counts_after(counts, index).after_rows(steps),
            row=rows_before + index * steps,
            num_steps=steps,
            num_updates=trainer.updates_per_iteration,
            mapped=mapped,
            key=update_key,
        )

    # XLA cannot tell that a loop over a traced number is empty, and would compile it.
    if trainer.warmup_steps > 0:
        progress = filter_fori_loop(0, warmup_left, warm_up, progress)
    return filter_fori_loop(warmup_left, num_iterations, learn, progress)


def _finish(trainer: Trainer, row: UnfinishedRow) -> tuple[Metrics, FailureReport]:
    """The metrics of a row that has ended, and what failed in it."""
    failure = row.failure
    lost_rows = jnp.where(failure.happened, row.num_rows - failure.row, 0)
    turned = row.watch.turned()
    metrics = row.averages.result()
    for name in row.watch.names:
        # What was infinite has an infinite average.
        named = failure.in_agent & turned[name] & jnp.isfinite(metrics[name])
        metrics[name] = jnp.where(named, jnp.nan, metrics[name])
    metrics["nonfinite"] = (lost_rows * trainer.num_envs).astype(float)
    report = FailureReport(
        kept_rows=failure.kept_rows, in_agent=failure.in_agent, turned=turned
    )
    return metrics, report


def _check_num_envs(trainer: Trainer, state: object) -> None:
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


@contextlib.contextmanager
def _explaining_misfits(
    trainer: Trainer, agent: AnyAgent, env: AnyEnv, state: AnyTrainerState
) -> Iterator[None]:
    """Replaces an error in tracing by a clearer one if the state does not fit."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        try:
            expected, _ = eqx.filter_eval_shape(trainer.init, agent, env, key=jr.key(0))
        except Exception:
            raise error from None
        check_same_shapes("state", expected, state)
        raise


def check_sizes(trainer: Trainer, *, sequence_length: int | None) -> None:
    """Checks that the sizes can work together."""
    if sequence_length is None:
        _check_on_policy(trainer)
        return
    if trainer.is_on_policy:
        raise ValueError(
            "The agent learns from a replay, but `eqrl.Trainer.on_policy` holds one "
            f"rollout only; use `eqrl.Trainer(num_envs={trainer.num_envs})`."
        )
    num_envs, capacity = trainer.num_envs, trainer.capacity
    batch_size, warmup_steps = trainer.batch_size, trainer.warmup_steps
    rows = capacity // num_envs
    held = rows * num_envs
    if rows < sequence_length:
        raise ValueError(
            f"`capacity={capacity}` gives each of `num_envs={num_envs}` environments "
            f"{rows} transitions, but the agent learns from `sequence_length="
            f"{sequence_length}` in a row; make it at least "
            f"{sequence_length * num_envs}."
        )
    if held < batch_size * sequence_length:
        raise ValueError(
            f"`capacity={capacity}` holds {held} transitions, less than one batch of "
            f"batch_size * sequence_length = {batch_size} * {sequence_length}; raise "
            "`capacity` or lower `batch_size`."
        )
    if warmup_steps < sequence_length * num_envs:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` must be at least "
            f"sequence_length * num_envs = {sequence_length} * {num_envs}, so that "
            "there is something to sample at the first update."
        )
    if warmup_steps > held:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` is more than the {held} transitions that "
            f"`capacity={capacity}` holds: the first of them would be overwritten "
            "before the first update. Raise `capacity` or lower `warmup_steps`."
        )


def _check_on_policy(trainer: Trainer) -> None:
    """Checks that a batch is all the steps of an iteration."""
    wrong = trainer.differences_from_on_policy()
    if wrong:
        given = ", ".join(f"{name}={shown(getattr(trainer, name))}" for name in wrong)
        raise ValueError(
            "The agent learns on-policy, from all the steps of an iteration and once, "
            f"which a trainer with `{given}` does not give it; use `eqrl.Trainer."
            f"on_policy(num_envs={trainer.num_envs}, num_steps=...)`, with the steps "
            "of every environment in a rollout."
        )


def _check_action(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    actors: Actors[EnvState, Memory],
    spec: EnvSpec,
    *,
    key: PRNGKeyArray,
) -> None:
    """Checks that actions are those that `spec` asks for."""

    def act(actor: Actors[EnvState, Memory]) -> object:
        return agent.act(state, actor.memory, actor.observation, mode="sample", key=key)

    actor = eqx.filter_eval_shape(lambda: take_element(actors, 0))
    chosen = eqx.filter_eval_shape(act, actor)
    action, _, _ = after_act(agent, actor.memory, chosen)
    check_action_fits(action, spec)
