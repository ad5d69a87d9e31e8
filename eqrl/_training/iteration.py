"""The two halves of an iteration: steps in the environments, then updates.

Both are functions of one carry, `Progress`. A failure is an observation, an action or a
reward that is not finite, or an infinite metric of an update. From the first one on,
they change only the number of rows.
"""

import dataclasses
from collections.abc import Mapping
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, UInt32

from .._agents.base import AnyAgent, after_observe
from .._interaction.actors import Actors, advance_with_keys, begin_where, step_keys
from .._pytree.control_flow import filter_cond, filter_fori_loop, filter_scan
from .._pytree.tree import described, is_float_shape, tree_is_finite, tree_where
from .._rewards.base import after_update
from .._types.custom_types import Metrics, Mode, PyTree
from ..envs._base import AnyEnv
from .replay import AbstractPrioritizedReplay, AnyReplay
from .schedule import Counts


class Failure(eqx.Module):
    """The first step at which something was not finite."""

    # Rows of the replay written, since the row of metrics began, before the failed step
    # or before the iteration of the failed update; -1 while everything is finite.
    row: Int[Array, ""]
    # How many of these rows stay in the replay. If an update failed, the rows of its
    # iteration stay too: they were finite.
    kept_rows: Int[Array, ""]
    # Whether the agent diverged, so that its state must be restored.
    in_agent: Bool[Array, ""]

    @property
    def happened(self) -> Bool[Array, ""]:
        """Whether there was a failure."""
        return self.row >= 0

    def or_at(
        self,
        condition: Bool[Array, ""],
        *,
        row: Int[Array, ""],
        kept_rows: Int[Array, ""],
        in_agent: Bool[Array, ""],
    ) -> "Failure":
        """Records a failure unless there is one already."""
        first = condition & ~self.happened
        return Failure(
            row=jnp.where(first, row, self.row),
            kept_rows=jnp.where(first, kept_rows, self.kept_rows),
            # Even after a failure elsewhere: a state that is not finite is useless.
            in_agent=self.in_agent | (condition & in_agent),
        )


class Averages(eqx.Module):
    """Running averages of metrics that skip `nan`, and which metric diverged first.

    A metric that is not computed in each update is `nan` in the others. It has diverged
    if it stays `nan` for more updates than there ever were between two finite values.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    means: Float[Array, " metrics"]
    # Values that are not `nan`. A float could only count to 2^24.
    counts: Int[Array, " metrics"]
    # Additions until the first infinite value, which determines what diverged first.
    added: Int[Array, ""]
    # The last addition in which each metric was finite; -1 before there was one.
    last: Int[Array, " metrics"]
    # The most additions from one finite value of each metric to the next.
    interval: Int[Array, " metrics"]
    overflowed: Bool[Array, ""]

    def add(self, metrics: Metrics) -> "Averages":
        """Adds one more value of each metric."""
        # In one array, the averages of all metrics take one kernel instead of many.
        values = jnp.array([metrics[name] for name in self.names], float)
        known = ~jnp.isnan(values)
        counts = self.counts + known.astype(self.counts.dtype)
        # A sum of millions of values would lose the last digits of each.
        moved = self.means + (values - self.means) / counts.astype(values.dtype)
        # inf - inf is nan, but a metric that was infinite once has an infinite mean.
        means = jnp.where(jnp.isinf(self.means), self.means + values, moved)
        finite = jnp.isfinite(values) & ~self.overflowed
        pause = jnp.maximum(self.interval, self.added - self.last)
        return Averages(
            names=self.names,
            means=jnp.where(known, means, self.means),
            counts=counts,
            added=self.added + (~self.overflowed).astype(self.added.dtype),
            last=jnp.where(finite, self.added, self.last),
            interval=jnp.where(finite & (self.last >= 0), pause, self.interval),
            overflowed=self.overflowed | jnp.any(jnp.isinf(values)),
        )

    def diverged(self) -> Bool[Array, " metrics"]:
        """Whether each metric is the one that diverged first; ties go to the first."""
        if not self.names:
            return jnp.zeros(0, bool)
        newest = self.added - 1
        since = jnp.where(self.last < 0, newest, self.last + self.interval)
        is_first = jnp.arange(len(self.names)) == jnp.argmin(since)
        # Before the first update, no metric has said anything.
        return is_first & (since <= newest) & (self.added > 0)

    def result(self, *, failed: Bool[Array, ""] | bool = False) -> Metrics:
        """The averages; `nan` where there was nothing to average.

        If the agent has `failed`, the metric that diverged first is `nan` or infinite.
        """
        # A metric that was infinite already has an infinite average.
        spoiled = failed & self.diverged() & jnp.isfinite(self.means)
        means = jnp.where((self.counts == 0) | spoiled, jnp.nan, self.means)
        return {name: means[index] for index, name in enumerate(self.names)}


def empty_averages(names: list[str]) -> Averages:
    """Averages without values yet."""
    return Averages(
        names=tuple(names),
        means=jnp.zeros(len(names)),
        counts=jnp.zeros(len(names), int),
        added=jnp.zeros((), int),
        last=jnp.full(len(names), -1, int),
        interval=jnp.ones(len(names), int),
        overflowed=jnp.array(False),
    )


def check_finite_agent(state: PyTree) -> None:
    """Checks that all numbers of an agent's state are finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not eqx.is_inexact_array(leaf):
            continue
        parts = [leaf]
        if isinstance(leaf, jax.Array):
            # Other processes hold the rest of an array that is spread over several.
            parts = [shard.data for shard in leaf.addressable_shards]
        for part in parts:
            if not np.all(np.isfinite(np.asarray(part))):
                raise ValueError(
                    "The agent's state begins with nan or infinity in "
                    f"`{jax.tree_util.keystr(path)}`; make its networks, or the state "
                    "that is given, finite."
                )


# Metrics that the trainer adds, and the columns that index the rows of a run.
_TAKEN = {"step", "nonfinite", "seed", "member", "skill", "generation", "parent"}
_TAKEN_BEGINNINGS = ("episode_return", "episode_length", "evaluation_")


def check_metrics(metrics: Mapping[str, object]) -> None:
    """Checks that each metric is a float scalar with a free name.

    `metrics` is a result of `jax.eval_shape`.
    """
    for name, value in metrics.items():
        if name in _TAKEN or name.startswith(_TAKEN_BEGINNINGS):
            raise ValueError(
                f"The metric `{name}` is the trainer's, or a column of `metrics.csv`; "
                "name it otherwise."
            )
        if not is_float_shape(value) or value.shape != ():
            raise ValueError(
                f"The metric `{name}` is of {described(value)}; it must be a scalar "
                "array of floats."
            )


class UnfinishedRow(eqx.Module):
    """A row of metrics in progress, where an interrupted training resumes."""

    of_updates: Averages
    of_episodes: Averages
    failure: Failure
    num_rows: Int[Array, ""]

    @property
    def names(self) -> list[str]:
        """The names of its metrics, in the order in which JAX returns dictionaries."""
        return [*sorted(self.of_updates.names + self.of_episodes.names), "nonfinite"]

    def after(self, earlier_failure: Bool[Array, ""]) -> "UnfinishedRow":
        """The row, with training frozen if an earlier row failed."""
        failure = self.failure.or_at(
            earlier_failure,
            row=self.num_rows,
            kept_rows=self.num_rows,
            in_agent=jnp.array(False),
        )
        return dataclasses.replace(self, failure=failure)

    def result(self, num_envs: int) -> Metrics:
        """The metrics of the row, if it ends here."""
        failure = self.failure
        lost_rows = jnp.where(failure.happened, self.num_rows - failure.row, 0)
        metrics = self.of_updates.result(failed=failure.in_agent)
        metrics |= self.of_episodes.result()
        return metrics | {"nonfinite": (lost_rows * num_envs).astype(float)}


UnfinishedRow.__init__.__doc__ = """**Arguments:**

- `of_updates`, `of_episodes`: averages of the metrics of updates and of episodes.
- `failure`: where something was not finite.
- `num_rows`: rows written to the replay since the row began.
"""


def empty_row(of_updates: list[str], of_episodes: list[str]) -> UnfinishedRow:
    """The beginning of a row with these metrics."""
    return UnfinishedRow(
        of_updates=empty_averages(of_updates),
        of_episodes=empty_averages(of_episodes),
        failure=Failure(
            row=jnp.array(-1, int),
            kept_rows=jnp.zeros((), int),
            in_agent=jnp.array(False),
        ),
        num_rows=jnp.zeros((), int),
    )


def names_of_updates(
    agent: AnyAgent,
    replay: AnyReplay,
    state: PyTree,
    stored: PyTree,
    counts: Counts,
    *,
    key: PRNGKeyArray,
) -> list[str]:
    """The names of the metrics of updates, in the agent's order, without an update.

    Raises a `ValueError` if one is not a metric.
    """

    def first_update(
        agent: AnyAgent,
        state: PyTree,
        stored: PyTree,
        counts: Counts,
        key: PRNGKeyArray,
    ) -> tuple[PyTree, dict[str, object], list[str]]:
        batch = replay.sample(stored, counts, key=key)
        return _update_once(agent, state, batch, counts.updates, jr.fold_in(key, 0))

    _, metrics, names = eqx.filter_eval_shape(
        first_update, agent, state, stored, counts, key
    )
    check_metrics(metrics)
    return names


# Inlined, it adds no program: JAX reuses its trace, which names the metrics, in the
# loop of updates.
@eqx.filter_jit(inline=True)  # pyright: ignore[reportCallIssue]
def _update_once(
    agent: AnyAgent,
    state: PyTree,
    batch: PyTree,
    step: Int[Array, ""],
    key: PRNGKeyArray,
) -> tuple[PyTree, dict[str, object], list[str]]:
    """An update, its metrics, and their names in the agent's order."""
    updated = agent.update(state, batch, step=step, key=key)
    after, metrics = after_update(agent, state, updated)
    # JAX returns dictionaries in alphabetical order.
    return after, metrics, list(metrics)


def all_finite(*arrays: Array | None) -> Bool[Array, ""]:
    """Whether no element is `nan` or infinite."""
    # `x - x` is `nan` where x is not finite. On a CPU, a sum of numbers is one loop,
    # but `jnp.all` of flags is several slow ones. Integers are always finite.
    floats = [x for x in arrays if x is not None and eqx.is_inexact_array(x)]
    return jnp.array([jnp.sum(array - array) == 0 for array in floats], bool).all()


def episode_metrics(
    over: Bool[Array, " envs"],
    lengths: Int[Array, " envs"],
    returns: Float[Array, " envs"] | Float[Array, "envs reward"],
) -> Metrics:
    """Mean length and return of the episodes that are `over`; `nan` if none is."""
    metrics = {"episode_length": _mean_where(over, lengths)}
    if returns.ndim == 1:
        return metrics | {"episode_return": _mean_where(over, returns)}
    return metrics | {
        f"episode_return_{index}": _mean_where(over, returns[:, index])
        for index in range(returns.shape[1])
    }


def _mean_where(condition: Bool[Array, " envs"], values: Array) -> Array:
    # 0 / 0, which is `nan`, if the condition holds nowhere.
    total = jnp.sum(jnp.where(condition, values, 0)).astype(float)
    return total / jnp.sum(condition).astype(float)


class Progress(eqx.Module):
    """The carry of the loop over iterations."""

    agent: PyTree
    # `Actors`, or `None` if there is no environment.
    actors: PyTree
    replay: PyTree
    row: UnfinishedRow


def collect(
    agent: AnyAgent,
    env: AnyEnv,
    replay: AnyReplay,
    progress: Progress,
    counts: Counts,
    *,
    num_steps: int,
    mode: Mode,
    mapped: bool,
    key: PRNGKeyArray,
) -> Progress:
    """Takes `num_steps` steps in every environment and stores them.

    `counts` are from before the steps; `mapped` is whether `vmap` may map over this.
    """
    num_envs = progress.actors.timestep.shape[0]
    # The key of a step depends only on its number, so that it makes no difference how
    # training is split into calls.
    first = counts.rows_written.astype(jnp.uint32)
    numbers = first + jnp.arange(num_steps, dtype=jnp.uint32)
    # Keys are hashed in a loop of many small kernels, regardless of their number, so
    # those of all rows are made together.
    keys = jax.vmap(lambda number: step_keys(jr.fold_in(key, number), num_envs))
    # They enter the loop as plain data: under `vmap`, `jax.debug_key_reuse` reports
    # that a loop over keys uses them twice.
    words, implementation = jr.key_data(keys(numbers)), jr.key_impl(key)

    def step(
        progress: Progress, now: tuple[Int[Array, ""], UInt32[Array, "envs 2 2 words"]]
    ) -> tuple[Progress, None]:
        index, words = now
        progress = _collect_row(
            agent,
            env,
            replay,
            progress,
            counts.after_rows(index),
            jr.wrap_key_data(words, impl=implementation),
            mode=mode,
            mapped=mapped,
        )
        return progress, None

    if num_steps == 1:
        # XLA keeps a loop of one step, and copies its carry, if a simulator is called.
        return step(progress, (jnp.zeros((), int), words[0]))[0]
    return filter_scan(step, progress, (jnp.arange(num_steps), words))[0]


def _collect_row(
    agent: AnyAgent,
    env: AnyEnv,
    replay: AnyReplay,
    progress: Progress,
    counts: Counts,
    keys: Key[Array, "envs 2 2"],
    *,
    mode: Mode,
    mapped: bool,
) -> Progress:
    """Takes one step in every environment and stores it.

    Acts and steps in all environments, checks that everything is finite, ends episodes,
    lets the agent observe, and writes the row. From the first failure on, each part
    keeps its old value, by a selection that does not copy the replay.
    """
    row = progress.row
    # After a failure, simulators outside JAX take no more steps.
    active = jnp.broadcast_to(~row.failure.happened, keys.shape[:1])
    actors, transitions = advance_with_keys(
        *(agent, progress.agent, env, progress.actors, keys[:, 0]),
        mode=mode,
        active=active,
    )
    # The agent is to blame for a nonfinite action only if its observations were finite.
    known = all_finite(transitions.observation, transitions.critic_observation)
    acting = all_finite(transitions.action)
    reached = (transitions.next_observation, transitions.next_critic_observation)
    behavior = (transitions.state_descriptor, transitions.next_state_descriptor)
    finite = known & acting & all_finite(transitions.reward, *reached, *behavior)
    going_on = ~row.failure.happened & finite
    over = transitions.terminated | transitions.truncated

    def end_episodes() -> tuple[Actors, Averages]:
        """Counts the episodes that are over and begins others, unless a step failed."""
        begun = begin_where(over, agent, progress.agent, env, actors, keys[:, 1])
        returns = progress.actors.episode_return + transitions.reward
        ended = episode_metrics(over, transitions.timestep + 1, returns)
        before = (progress.actors, row.of_episodes)
        return tree_where(going_on, (begun, row.of_episodes.add(ended)), before)

    # Beginning an episode costs at least as much as a step, and most steps end none.
    # Under `vmap` a branch would compute both sides and select.
    new_actors, of_episodes = (
        end_episodes()
        if mapped
        else filter_cond(
            jnp.any(over) | ~going_on,
            end_episodes,
            lambda: (actors, row.of_episodes),
        )
    )
    observed = after_observe(
        agent, progress.agent, agent.observe(progress.agent, transitions)
    )
    return Progress(
        agent=tree_where(going_on, observed, progress.agent),
        actors=new_actors,
        # Selecting between two replays would copy both, so the row is selected instead.
        replay=replay.add(progress.replay, transitions, counts, keep=going_on),
        row=UnfinishedRow(
            of_updates=row.of_updates,
            of_episodes=of_episodes,
            failure=row.failure.or_at(
                ~finite,
                row=row.num_rows,
                kept_rows=row.num_rows,
                in_agent=known & ~acting,
            ),
            # Counted after a failure too, to tell how many steps were lost.
            num_rows=row.num_rows + 1,
        ),
    )


def update(
    agent: AnyAgent,
    replay: AnyReplay,
    progress: Progress,
    counts: Counts,
    *,
    num_steps: int,
    num_updates: int | Int[Array, ""],
    mapped: bool,
    key: PRNGKeyArray,
) -> Progress:
    """Makes `num_updates` updates, each on its own batch.

    `counts` are from after the `num_steps` steps of the iteration, and `mapped` is
    whether `vmap` may map over this.
    """
    row = progress.row
    going_on = ~row.failure.happened
    prioritized = replay if isinstance(replay, AbstractPrioritizedReplay) else None

    def step(
        index: Int[Array, ""], carry: tuple[PyTree, Averages, PyTree]
    ) -> tuple[PyTree, Averages, PyTree]:
        state, averages, stored = carry
        # Unsigned, as `fold_in` takes it. The number depends only on the counts, so
        # that it makes no difference how training is split into calls.
        number = counts.updates.astype(jnp.uint32) + index.astype(jnp.uint32)
        sample_key, update_key = jr.split(jr.fold_in(key, number))
        batch = replay.sample(
            progress.replay if prioritized is None else stored, counts, key=sample_key
        )
        new_state, metrics, _ = _update_once(
            agent, state, batch, counts.updates + index, update_key
        )
        after = (new_state, averages.add(cast(Metrics, metrics)))
        if mapped:
            after = tree_where(going_on, after, (state, averages))
        if prioritized is not None:
            keep = going_on if mapped else None
            stored = prioritized.prioritize(stored, batch, new_state, counts, keep=keep)
        return (*after, stored)

    # Without `vmap` the updates after a failure are skipped. Under `vmap` a number of
    # updates for each member would batch `step`, and so turn an agent's branches into
    # selects. Instead they are made and discarded, which slows a population with a
    # failed member by a few percent.
    #
    # Either way the number depends on a traced value, although under `vmap` the
    # condition always holds. XLA unrolls a loop that it knows to be short, fuses the
    # write of a row into the reads of a batch, and then keeps a copy of the replay from
    # before the write.
    possible = counts.updates >= 0 if mapped else going_on
    # A replay that no update changes stays out of the carry.
    changing = None if prioritized is None else progress.replay
    agent_state, of_updates, stored = filter_fori_loop(
        0,
        jnp.where(possible, num_updates, 0),
        step,
        (progress.agent, row.of_updates, changing),
    )
    return Progress(
        agent=agent_state,
        actors=progress.actors,
        replay=progress.replay if prioritized is None else stored,
        row=dataclasses.replace(
            row,
            of_updates=of_updates,
            # Only infinite values, since `nan` may mean "not at this update".
            failure=row.failure.or_at(
                of_updates.overflowed & going_on,
                row=row.num_rows - num_steps,
                kept_rows=row.num_rows,
                in_agent=jnp.array(True),
            ),
        ),
    )


def restore_agent(
    progress: Progress, first: PyTree, *, ends_row: Bool[Array, ""], num_steps: int
) -> Progress:
    """Restores an agent that diverged to `first`, its state when the row began.

    If `ends_row`, its state must be finite. `num_steps` are those of an iteration.
    """
    row = progress.row
    failure = row.failure.or_at(
        ends_row & ~tree_is_finite(progress.agent),
        row=jnp.maximum(row.num_rows - num_steps, 0),
        kept_rows=row.num_rows,
        in_agent=jnp.array(True),
    )
    return Progress(
        # The state just before the one that diverged would diverge again: back to the
        # last one whose updates were all finite.
        agent=tree_where(failure.in_agent, first, progress.agent),
        actors=progress.actors,
        replay=progress.replay,
        row=dataclasses.replace(row, failure=failure),
    )
