"""Training from a data set alone."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent, after_observe
from .._interaction.fit import check_numbers
from .._pytree.arguments import checked
from .._pytree.fields import NonNegativeInt, PositiveInt
from .._pytree.tree import check_same_shapes, tree_copy, tree_is_finite, tree_where
from .._types.custom_types import Extras, Memory, Metrics, State
from .._types.data import AnyTransition, EnvSpec, Transition
from .data_set import fill_replay, fitting_transitions
from .host_loop import Callbacks, Reached, drive
from .iteration import (
    FailureReport,
    Progress,
    check_finite_agent,
    empty_row,
    names_of_updates,
    update,
)
from .replay import AnyReplay, ReplayBuffer
from .rows import OfflineSolution, append_row, what_failed
from .schedule import Counts


@checked
def train_offline(
    agent: AbstractAgent[State, Memory, Extras],
    transitions: Transition[Extras],
    spec: EnvSpec,
    *,
    num_updates: NonNegativeInt,
    key: PRNGKeyArray,
    batch_size: PositiveInt = 256,
    log_every: PositiveInt = 1_000,
    initial: OfflineSolution[State] | None = None,
    callback: Callbacks[OfflineSolution[State]] | None = None,
) -> OfflineSolution[State]:
    """Trains one agent on a data set, without an environment.

    The agent observes all transitions once, which is what `eqrl.Normalized` and other
    wrappers learn from, and is then updated on batches that a replay of them draws.

    **Arguments:**

    - `agent`: any agent that learns from a replay.
    - `transitions`: the data, with one leading axis, such as those that
        `eqrl.transitions_from_arrays` makes. For an agent that learns from several
        steps in a row, the steps of an episode follow each other. Extras are needed
        where the agent stores some, and otherwise left out.
    - `spec`: of the environment that they are from: `env.spec`, or made by hand as in
        `eqrl.EnvSpec(observation_size=17, action_size=6)`.
    - `num_updates`: how many updates to make, beyond those of `initial`.
    - `key`: of the whole training. To resume, give the same one again.
    - `batch_size`: elements of a batch, each of the agent's `sequence_length`
        transitions.
    - `log_every`: updates in a row of the metrics. It is also how often `callback` is
        called and Ctrl-C is looked for. It does not affect the result.
    - `initial`: the solution of an earlier call, from which to resume: with the same
        data, key and hyperparameters, the state is that of one longer call, bit for
        bit, and so are the rows of the metrics if the earlier call ended with a whole
        one. The data are not observed again. It stays usable.
    - `callback`: called as `callback(step, metrics, solution)` after each row, where
        steps are updates; or several of them, as in `eqrl.train`, such as an
        `eqrl.Evaluations`. Training ends with this row if one returns true. Copy what
        you keep of the state (`eqrl.tree_copy`): it is donated to the next row.

    **Returns:**

    An `OfflineSolution`.

    Raises a `ValueError` unless the agent fits the transitions, they fit `spec`, and
    their numbers are finite and actions in [-1, 1]; a `NonFiniteError` if what an
    update makes is not finite, and `TrainingInterrupted` after Ctrl-C, SIGTERM or
    SIGHUP. The last two hold the solution so far.
    """
    if agent.sequence_length is None:
        raise ValueError(
            f"`{type(agent).__name__}` learns on-policy, from steps that it has just "
            "taken itself, so not from a data set; take an agent that learns from a "
            "replay, such as `eqrl.SAC` or, for discrete actions, `eqrl.DQN`."
        )
    check_numbers(agent, spec)
    data = fitting_transitions(agent, transitions, spec)
    replay = ReplayBuffer(data.timestep.shape[0], batch_size, agent.sequence_length)
    stored, counts = fill_replay(replay, data)
    solution, done = _start(agent, spec, data, initial, key=jr.fold_in(key, 0))
    del data
    run_key, end = jr.fold_in(key, 1), done + num_updates

    def rows() -> Iterator[Reached]:
        nonlocal solution, stored, counts, done
        yield Reached(done, None, solution)
        while done < end:
            # Rows end where those of one call would.
            size = min(log_every - done % log_every, end - done)
            number = jnp.asarray(done, int)
            counts = eqx.tree_at(lambda counts: counts.updates, counts, number)
            kept = (agent, replay, counts, jnp.asarray(size, int), run_key)
            state, stored, metrics, failure = _update(kept, solution.state, stored)
            if bool(failure.in_agent):
                solution = OfflineSolution(state=state, metrics=solution.metrics)
                yield Reached(done, None, solution, what_failed(failure))
                return
            done += size
            row = {name: np.asarray(value) for name, value in metrics.items()}
            solution = OfflineSolution(
                state=state, metrics=append_row(solution.metrics, done, row)
            )
            yield Reached(done, row, solution)

    return drive(rows(), callback=callback, counted="update")


def _start(
    agent: AbstractAgent[State, Memory, Extras],
    spec: EnvSpec,
    data: AnyTransition,
    initial: OfflineSolution[State] | None,
    *,
    key: PRNGKeyArray,
) -> tuple[OfflineSolution[State], int]:
    """A solution to resume from, which may be donated, and its number of updates."""
    if initial is None:
        state, metrics = _begin(agent, spec, data, key), {}
    else:
        expected = eqx.filter_eval_shape(agent.init, spec, key=key)
        check_same_shapes("initial", expected, initial.state)
        state = tree_copy(initial.state)
        metrics = initial.metrics
    check_finite_agent(state)
    done = int(metrics["step"][-1]) if metrics else 0
    return OfflineSolution(state=state, metrics=metrics), done


@eqx.filter_jit
def _begin(
    agent: AbstractAgent[State, Memory, Extras],
    spec: EnvSpec,
    data: AnyTransition,
    key: PRNGKeyArray,
) -> State:
    state = agent.init(spec, key=key)
    return after_observe(agent, state, agent.observe(state, data))


@eqx.filter_jit(donate="all-except-first")
def _update(
    kept: tuple[AnyAgent, AnyReplay, Counts, Int[Array, ""], PRNGKeyArray],
    state: Any,
    stored: Any,
) -> tuple[Any, Any, Metrics, FailureReport]:
    """Makes updates; returns the state from before them if one is not finite."""
    agent, replay, counts, num_updates, key = kept
    row = empty_row(names_of_updates(agent, replay, state, stored, counts, key=key), [])
    progress = Progress(
        agent=state,
        actors=None,
        replay=stored,
        averages=row.averages,
        watch=row.watch,
        failure=row.failure,
    )
    progress = update(
        agent,
        replay,
        progress,
        counts,
        row=jnp.zeros((), int),
        num_steps=0,
        num_updates=num_updates,
        mapped=False,
        key=key,
    )
    failed = progress.failure.happened | ~tree_is_finite(progress.agent)
    report = FailureReport(
        kept_rows=jnp.zeros((), int), in_agent=failed, turned=progress.watch.turned()
    )
    after = tree_where(failed, state, progress.agent)
    return after, progress.replay, progress.averages.result(), report
