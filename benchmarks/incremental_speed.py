"""The cost of the reward of DISk beside an update of SAC on as many transitions.

256 transitions, descriptors of two elements, the last 100 features and 512 past ones,
either all of them or drawn from 10,000. Hidden layers of 256 and 256. Both run in a
loop, always on the same batch. Run it as `nox -s benchmarks -- incremental_speed`.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._pytree.control_flow import filter_fori_loop

from .measure import median_ratio, side_by_side


NUM_TRANSITIONS = 256
MAX_STEPS = 100
SPEC = eqrl.EnvSpec(
    observation_size=8, action_size=2, state_descriptor_size=2, max_steps=MAX_STEPS
)
PAST_POINTS = (512, 10_000)


def random_transitions(key: PRNGKeyArray, *batch: int) -> eqrl.Transition[None]:
    """Transitions with these leading axes."""
    keys = jr.split(key, 6)
    return eqrl.Transition(
        observation=jr.normal(keys[0], (*batch, SPEC.observation_size)),
        action=jr.uniform(keys[1], (*batch, SPEC.action_size), minval=-1, maxval=1),
        reward=jr.normal(keys[2], batch),
        next_observation=jr.normal(keys[3], (*batch, SPEC.observation_size)),
        terminated=jnp.zeros(batch, bool),
        truncated=jnp.zeros(batch, bool),
        timestep=jnp.zeros(batch, int),
        state_descriptor=jr.normal(keys[4], (*batch, 2)),
        next_state_descriptor=jr.normal(keys[5], (*batch, 2)),
        extras=None,
    )


@eqx.filter_jit
def _updates(
    agent: eqrl.SAC,
    state: eqrl.SACState,
    batch: eqrl.Transition[None],
    num_updates: Int[Array, ""],
    key: PRNGKeyArray,
) -> PyTree:
    def update(step: Int[Array, ""], state: Any) -> Any:
        return agent.update(state, batch, step=step, key=jr.fold_in(key, step))[0]

    return filter_fori_loop(0, num_updates, update, state)


@eqx.filter_jit
def _rewards(
    reward: eqrl.Incremental,
    state: eqrl.IncrementalState,
    batch: eqrl.Transition[None],
    num_rewards: Int[Array, ""],
    key: PRNGKeyArray,
) -> Float[Array, " batch"]:
    def score(step: Int[Array, ""], before: Float[Array, " batch"]) -> Array:
        # The position of the batch depends on the previous result, so that XLA moves
        # no work out of the loop.
        assert batch.next_state_descriptor is not None
        reached = batch.next_state_descriptor + 1e-3 * before[:, None]
        moved = dataclasses.replace(batch, next_state_descriptor=reached)
        return reward.reward(state, moved, step=step, key=jr.fold_in(key, step))

    return filter_fori_loop(0, num_rewards, score, jnp.zeros(NUM_TRANSITIONS))


def make_updates(num_updates: int) -> Callable[[], PyTree]:
    """A function that makes a number of updates of SAC from one batch."""
    agent = eqrl.SAC()
    key = jr.key(0)
    state = agent.init(SPEC, key=jr.fold_in(key, 0))
    batch = random_transitions(jr.fold_in(key, 1), NUM_TRANSITIONS)
    update_key = jr.fold_in(key, 2)
    return lambda: _updates(agent, state, batch, jnp.asarray(num_updates), update_key)


def make_rewards(num_rewards: int, past_points: int) -> Callable[[], PyTree]:
    """A function that repeatedly scores one batch against a number of past features."""
    reward = eqrl.Incremental(past_capacity=past_points)
    key = jr.key(0)
    state = reward.init(SPEC, key=jr.fold_in(key, 0))
    state = reward.observe(state, random_transitions(jr.fold_in(key, 1), MAX_STEPS))
    past = random_transitions(jr.fold_in(key, 2), 1, past_points)
    state = reward.with_past(state, past, jnp.ones((1, past_points), bool))
    batch = random_transitions(jr.fold_in(key, 3), NUM_TRANSITIONS)
    reward_key = jr.fold_in(key, 4)
    return lambda: _rewards(reward, state, batch, jnp.asarray(num_rewards), reward_key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    runs = {"update of SAC": make_updates(arguments.updates)}
    for past_points in PAST_POINTS:
        name = f"reward, of {past_points} past features"
        runs[name] = make_rewards(arguments.updates, past_points)
    times = side_by_side(runs, repeats=arguments.repeats)
    print("| what | µs, median | time / an update of SAC |")
    print("|---|---|---|")
    for name in runs:
        duration = statistics.median(times[name]) / arguments.updates
        ratio = median_ratio(times[name], times["update of SAC"])
        print(f"| {name} | {1e6 * duration:.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
