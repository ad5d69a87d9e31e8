"""The two halves of an iteration: steps in the environments, then updates.

Both are functions of one carry. After an observation, an action or a reward was not
finite, or a metric of an update infinite, they change nothing any more.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from .._agents.base import AbstractAgent, AnyAgent, after_observe
from .._interaction.actors import Actors, advance_with_keys, begin_where, step_keys
from .._pytree.control_flow import filter_cond, filter_fori_loop, filter_scan
from .._pytree.tree import described, is_float_shape, tree_where
from .._rewards.base import after_update
from .._types.custom_types import Extras, Memory, Metrics, Mode, PyTree, State
from .._types.data import Transition
from ..envs._base import AnyEnv
from .replay import AbstractPrioritizedReplay, AnyReplay
from .schedule import Counts


class Failure(eqx.Module):
    """The first step at which something was not finite."""

    # Rows of the replay written, since the row of metrics began, before the step or
    # before the iteration whose update it was; -1 while all is finite.
    row: Int[Array, ""]
    # Those of them that stay in the replay: in the second case those of the iteration,
    # too.
    kept_rows: Int[Array, ""]
    # Whether the agent diverged, so that its state must be restored.
    in_agent: Bool[Array, ""]

    @property
    def happened(self) -> Bool[Array, ""]:
        """Whether there was any."""
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
            in_agent=self.in_agent | (condition & in_agent),
        )


def no_failure() -> Failure:
    """A row of metrics without a failure so far."""
    return Failure(
        row=jnp.array(-1, int), kept_rows=jnp.zeros((), int), in_agent=jnp.array(False)
    )


class FailureReport(eqx.Module):
    """Failure of a row of metrics, if there was one."""

    kept_rows: Int[Array, ""]
    in_agent: Bool[Array, ""]
    # True for the first metric that became non-finite, if any.
    turned: dict[str, Bool[Array, ""]]


class Watch(eqx.Module):
    """The last update of a row in which each metric was finite.

    A metric that is not computed in each update is `nan` in the others. It has turned
    where it is `nan` after more updates than there were between two finite values.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    updates: Int[Array, ""]
    # -1 before there was one.
    last: Int[Array, " metrics"]
    interval: Int[Array, " metrics"]
    overflowed: Bool[Array, ""]

    def add(self, metrics: Metrics) -> "Watch":
        """Adds the metrics of one more update; unchanged after one that overflowed."""
        if not self.names:
            return self
        values = jnp.stack([metrics[name].astype(float) for name in self.names])
        finite = jnp.isfinite(values) & ~self.overflowed
        pause = jnp.maximum(self.interval, self.updates - self.last)
        return Watch(
            names=self.names,
            updates=self.updates + (~self.overflowed).astype(self.updates.dtype),
            last=jnp.where(finite, self.updates, self.last),
            interval=jnp.where(finite & (self.last >= 0), pause, self.interval),
            overflowed=self.overflowed | jnp.any(jnp.isinf(values)),
        )

    def turned(self) -> dict[str, Bool[Array, ""]]:
        """Which metric turned first, if any did: of several, the first in `names`."""
        if not self.names:
            return {}
        newest = self.updates - 1
        since = jnp.where(self.last < 0, newest, self.last + self.interval)
        first = jnp.argmin(since)
        return {
            name: (first == index) & (since[index] <= newest)
            for index, name in enumerate(self.names)
        }


def empty_watch(names: list[str]) -> Watch:
    """A `Watch` before the first update of a row."""
    return Watch(
        names=tuple(names),
        updates=jnp.zeros((), int),
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


# What the trainer adds to the metrics, and the columns that count rows of a run.
_TAKEN = {"step", "nonfinite", "seed", "member", "skill", "generation", "parent"}


class Averages(eqx.Module):
    """Running averages of metrics, which skip `nan`."""

    means: dict[str, Float[Array, ""]]
    counts: dict[str, Int[Array, ""]]

    def add(self, metrics: Metrics) -> "Averages":
        """Adds one more value of some of the metrics."""
        means, counts = dict(self.means), dict(self.counts)
        for name, value in metrics.items():
            known = ~jnp.isnan(value)
            counts[name] = counts[name] + known.astype(counts[name].dtype)
            means[name] = jnp.where(
                known, _mean_with(means[name], value, counts[name]), means[name]
            )
        return Averages(means=means, counts=counts)

    def result(self) -> Metrics:
        """The averages; `nan` where there was nothing to average."""
        return {
            name: jnp.where(self.counts[name] > 0, self.means[name], jnp.nan)
            for name in self.means
        }


def empty_averages(names: list[str]) -> Averages:
    """A running average for each name, without values yet."""
    return Averages(
        means={name: jnp.zeros(()) for name in names},
        counts={name: jnp.zeros((), int) for name in names},
    )


def _mean_with(
    mean: Float[Array, ""], value: Float[Array, ""], count: Int[Array, ""]
) -> Float[Array, ""]:
    """The mean of `count` values, given that of all but the last of them."""
    # A sum of millions of values would lose the last digits of each.
    value = value.astype(mean.dtype)
    moved = mean + (value - mean) / count.astype(mean.dtype)
    # inf - inf is nan, but what was infinite once has an infinite average.
    return jnp.where(jnp.isinf(mean), mean + value, moved)


def check_metrics(metrics: Mapping[str, object]) -> None:
    """Checks that each metric is a float scalar with a free name.

    `metrics` is a result of `jax.eval_shape`.
    """
    for name, value in metrics.items():
        if name in _TAKEN:
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
    """A row of metrics in progress, from which an interrupted training resumes."""

    averages: Averages
    watch: Watch
    failure: Failure
    num_rows: Int[Array, ""]


UnfinishedRow.__init__.__doc__ = """**Arguments:**

- `averages`: of the metrics.
- `watch`: which metrics were finite last, and when.
- `failure`: where something was not finite.
- `num_rows`: rows written to the replay since the row began.
"""


def empty_row(of_updates: list[str], of_episodes: list[str]) -> UnfinishedRow:
    """The beginning of a row, of these metrics."""
    return UnfinishedRow(
        averages=empty_averages(of_updates + of_episodes),
        watch=empty_watch(of_updates),
        failure=no_failure(),
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
    """The names of the metrics of updates, in the agent's order, without making any.

    Raises a `ValueError` if one is not a metric.
    """
    names: list[str] = []

    def metrics(
        agent: AnyAgent,
        state: PyTree,
        stored: PyTree,
        counts: Counts,
        key: PRNGKeyArray,
    ) -> dict[str, object]:
        batch = replay.sample(stored, counts, key=key)
        updated = agent.update(
            state, batch, step=counts.updates, key=jr.fold_in(key, 0)
        )
        _, metrics = after_update(agent, state, updated)
        # JAX returns dictionaries in the order of the alphabet.
        names[:] = metrics
        return metrics

    check_metrics(eqx.filter_eval_shape(metrics, agent, state, stored, counts, key))
    return names


def all_finite(*arrays: Array) -> Bool[Array, ""]:
    """Whether no element is `nan` or infinite."""
    # The difference is `nan` where a value is not finite. A sum of numbers is one loop
    # on a CPU, where `jnp.all` of flags is several slow ones.
    return jnp.all(jnp.stack([jnp.sum(array - array) == 0 for array in arrays]))


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
    # 0 / 0, so `nan`, where the condition holds nowhere.
    total = jnp.sum(jnp.where(condition, values, 0)).astype(float)
    return total / jnp.sum(condition).astype(float)


class Progress(eqx.Module):
    """The carry of the loop over iterations."""

    agent: PyTree
    # `Actors`; nothing where there is no environment.
    actors: PyTree
    replay: PyTree
    averages: Averages
    watch: Watch
    failure: Failure


def collect(
    agent: AnyAgent,
    env: AnyEnv,
    replay: AnyReplay,
    progress: Progress,
    counts: Counts,
    *,
    row: Int[Array, ""],
    num_steps: int,
    mode: Mode,
    mapped: bool,
    key: PRNGKeyArray,
) -> Progress:
    """Takes `num_steps` steps in every environment and stores them.

    `counts` are those from before, and so is `row`, the number of rows of this call.
    `mapped` says whether `vmap` may map over this.
    """
    # A step is in five parts: act and step everywhere; look whether all is finite; end
    # episodes; let the agent observe; write the row. From the first failure on, each
    # part keeps what there was, by a choice that costs no copy of the replay.
    implementation = jr.key_impl(key)
    num_envs = progress.actors.timestep.shape[0]
    words = _keys_of_rows(counts, num_steps, num_envs=num_envs, key=key)

    def step(
        progress: Progress, now: tuple[Int[Array, ""], UInt32[Array, "envs 2 2 words"]]
    ) -> tuple[Progress, None]:
        index, words = now
        keys = jr.wrap_key_data(words, impl=implementation)
        actors, transitions = advance_with_keys(
            agent, progress.agent, env, progress.actors, keys[:, 0], mode=mode
        )
        known = all_finite(transitions.observation)
        acting = all_finite(transitions.action)
        outcome = (transitions.reward, transitions.next_observation)
        finite = known & acting & all_finite(*outcome)
        going_on = ~progress.failure.happened & finite
        over = transitions.terminated | transitions.truncated

        def end_episodes() -> tuple[Actors, Averages]:
            """Counts the episodes that are over and begins others.

            After a failure nothing changes.
            """
            begun = begin_where(over, agent, progress.agent, env, actors, keys[:, 1])
            returns = progress.actors.episode_return + transitions.reward
            ended = episode_metrics(over, transitions.timestep + 1, returns)
            averages = progress.averages.add(ended)
            before = (progress.actors, progress.averages)
            return tree_where(going_on, (begun, averages), before)

        # To begin an episode costs as much as a step, or more, and most steps end none.
        # Under `vmap` a branch would be a choice between both.
        new_actors, averages = (
            end_episodes()
            if mapped
            else filter_cond(
                jnp.any(over) | ~going_on,
                end_episodes,
                lambda: (actors, progress.averages),
            )
        )
        observed = after_observe(
            agent, progress.agent, agent.observe(progress.agent, transitions)
        )
        progress = Progress(
            agent=tree_where(going_on, observed, progress.agent),
            actors=new_actors,
            # A choice between two replays would copy both: the row is chosen instead.
            replay=replay.add(
                progress.replay, transitions, counts.after_rows(index), keep=going_on
            ),
            averages=averages,
            watch=progress.watch,
            failure=progress.failure.or_at(
                ~finite,
                row=row + index,
                kept_rows=row + index,
                in_agent=known & ~acting,
            ),
        )
        return progress, None

    progress, _ = filter_scan(step, progress, (jnp.arange(num_steps), words))
    return progress


def _keys_of_rows(
    counts: Counts, num_rows: int, *, num_envs: int, key: PRNGKeyArray
) -> UInt32[Array, "rows envs 2 2 words"]:
    """The numbers of the keys of all environments in the next rows."""
    # Keys are hashed in a loop of many small kernels, however many they are, so all are
    # made together. They are passed on as numbers: under `vmap`, `jax.debug_key_reuse`
    # says of a loop over keys that it uses them twice.
    first = counts.rows_written.astype(jnp.uint32)
    numbers = first + jnp.arange(num_rows, dtype=jnp.uint32)
    keys = jax.vmap(lambda number: step_keys(jr.fold_in(key, number), num_envs))
    return jr.key_data(keys(numbers))


def update(
    agent: AnyAgent,
    replay: AnyReplay,
    progress: Progress,
    counts: Counts,
    *,
    row: Int[Array, ""],
    num_steps: int,
    num_updates: int | Int[Array, ""],
    mapped: bool,
    key: PRNGKeyArray,
) -> Progress:
    """Makes `num_updates` updates, each on a batch of its own.

    `counts` are those after the `num_steps` steps of the iteration, and `row` is the
    number of rows of this call before them. `mapped` says whether `vmap` may map over
    this.
    """
    going_on = ~progress.failure.happened
    prioritized = replay if isinstance(replay, AbstractPrioritizedReplay) else None

    def step(
        index: Int[Array, ""], carry: tuple[PyTree, Averages, Watch, PyTree]
    ) -> tuple[PyTree, Averages, Watch, PyTree]:
        state, averages, watch, stored = carry
        number = counts.updates.astype(jnp.uint32) + index.astype(jnp.uint32)
        sample_key, update_key = jr.split(jr.fold_in(key, number))
        batch = replay.sample(
            progress.replay if prioritized is None else stored, counts, key=sample_key
        )
        new_state, metrics = _learn(
            agent, state, batch, step=counts.updates + index, key=update_key
        )
        after = (new_state, averages.add(metrics), watch.add(metrics))
        if mapped:
            after = tree_where(going_on, after, (state, averages, watch))
        if prioritized is not None:
            keep = going_on if mapped else None
            stored = prioritized.prioritize(stored, batch, new_state, counts, keep=keep)
        return (*after, stored)

    # Without `vmap` the updates after a failure are skipped. Under `vmap` a number of
    # updates for each member would batch `step`, and so turn an agent's branches into
    # selects: they are made and discarded, which costs some percent of a population
    # with a failed member.
    #
    # Either way the number depends on a traced value, although under `vmap` the
    # condition always holds. XLA unrolls a loop that it knows to be short, fuses the
    # write of a row into the reads of a batch, and then keeps a copy of the replay from
    # before the write.
    possible = counts.updates >= 0 if mapped else going_on
    agent_state, averages, watch, stored = filter_fori_loop(
        0,
        jnp.where(possible, num_updates, 0),
        step,
        # A replay that no update changes stays out of the carry.
        (
            progress.agent,
            progress.averages,
            progress.watch,
            None if prioritized is None else progress.replay,
        ),
    )
    return Progress(
        agent=agent_state,
        actors=progress.actors,
        replay=progress.replay if prioritized is None else stored,
        averages=averages,
        watch=watch,
        failure=progress.failure.or_at(
            watch.overflowed & going_on,
            row=row,
            kept_rows=row + num_steps,
            in_agent=jnp.array(True),
        ),
    )


def _learn(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    batch: Transition[Extras],
    *,
    step: Int[Array, ""],
    key: PRNGKeyArray,
) -> tuple[State, Metrics]:
    """Calls `agent.update`; its result is checked here where types are checked."""
    return agent.update(state, batch, step=step, key=key)
