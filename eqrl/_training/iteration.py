"""The two halves of an iteration: steps in the environments, then updates.

Both are functions of one carry. After an observation, an action or a reward was not
finite, or a metric of an update infinite, they change nothing any more.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from .._agents import AbstractAgent
from .._agents.base import AnyAgent, after_observe
from .._interaction.actors import Actors, advance_with_keys, begin_where, step_keys
from .._pytree.control_flow import filter_cond, filter_fori_loop, filter_scan
from .._pytree.tree import tree_where
from .._types.custom_types import Extras, Memory, Metrics, Mode, State
from .._types.data import Transition
from ..envs._base import AnyEnv
from .counts import Counts
from .failure import Failure, Watch
from .metrics import Averages, all_finite, episode_metrics
from .replay import AbstractPrioritizedReplay, AnyReplay


class Progress(eqx.Module):
    """The carry of the loop over iterations."""

    agent: Any
    # `Actors`; nothing where there is no environment.
    actors: Any
    replay: Any
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
    row_number: UInt32[Array, ""],
    num_steps: int,
    mode: Mode,
    mapped: bool,
    key: PRNGKeyArray,
) -> Progress:
    """Takes `num_steps` steps in every environment and stores them.

    `counts` are those from before, and so are `row`, the number of rows of this call,
    and `row_number`, the exact number of all rows modulo 2^32. `mapped` says whether
    `vmap` may map over this.
    """

    # Keys are hashed in a loop of many small kernels, however many they are: those of
    # all steps are made at once. They are handed on as numbers: of a loop over keys,
    # `jax.debug_key_reuse` says under `vmap` that it uses them twice.
    num_envs = progress.actors.timestep.shape[0]
    numbers = row_number + jnp.arange(num_steps, dtype=jnp.uint32)
    keys = jax.vmap(lambda number: step_keys(jr.fold_in(key, number), num_envs))(
        numbers
    )
    implementation = jr.key_impl(key)

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
        finite = all_finite(transitions.reward, transitions.next_observation)
        finite = known & acting & finite
        going_on = ~progress.failure.happened & finite
        over = transitions.terminated | transitions.truncated

        def turn() -> tuple[Actors[Any, Any], Averages]:
            """Ends episodes and begins others, unless all stays as it was."""
            begun = begin_where(over, agent, progress.agent, env, actors, keys[:, 1])
            metrics = episode_metrics(
                over,
                transitions.timestep + 1,
                progress.actors.episode_return + transitions.reward,
            )
            return tree_where(
                going_on,
                (begun, progress.averages.add(metrics)),
                (progress.actors, progress.averages),
            )

        # To begin an episode costs as much as a step, or more, and most steps end none.
        # Under `vmap` a branch would be a choice between both.
        new_actors, averages = (
            turn()
            if mapped
            else filter_cond(
                jnp.any(over) | ~going_on, turn, lambda: (actors, progress.averages)
            )
        )
        observed = after_observe(
            agent, progress.agent, agent.observe(progress.agent, transitions)
        )
        agent_state = tree_where(going_on, observed, progress.agent)
        progress = Progress(
            agent=agent_state,
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

    progress, _ = filter_scan(
        step, progress, (jnp.arange(num_steps), jr.key_data(keys))
    )
    return progress


def update(
    agent: AnyAgent,
    replay: AnyReplay,
    progress: Progress,
    counts: Counts,
    *,
    row: Int[Array, ""],
    update_number: UInt32[Array, ""],
    num_steps: int,
    num_updates: int | Int[Array, ""],
    mapped: bool,
    key: PRNGKeyArray,
) -> Progress:
    """Makes `num_updates` updates, each on a batch of its own.

    `counts` are those after the `num_steps` steps of the iteration. `row` is the number
    of rows of this call before them, and `update_number` the exact number of updates
    before these modulo 2^32. `mapped` says whether `vmap` may map over this.
    """
    going_on = ~progress.failure.happened
    prioritized = replay if isinstance(replay, AbstractPrioritizedReplay) else None

    def step(
        index: Int[Array, ""], carry: tuple[Any, Averages, Watch, Any]
    ) -> tuple[Any, Averages, Watch, Any]:
        state, averages, watch, stored = carry
        number = update_number + index.astype(jnp.uint32)
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
    """`agent.update`, of any agent, with what it gives checked where types are."""
    return agent.update(state, batch, step=step, key=key)
