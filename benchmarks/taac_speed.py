"""The cost of an update of TAAC beside one of SAC, on as many transitions.

Hidden layers of 256 and 256, 256 transitions, windows of four. Updates run in a loop,
always on the same batch. Run it as `nox -s benchmarks -- taac_speed`.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._pytree.control_flow import filter_fori_loop

from .measure import median_ratio, side_by_side


NUM_TRANSITIONS = 256
AGENTS = {
    "SAC": eqrl.SAC(),
    "TAAC": eqrl.TAAC(),
    "TAAC-L": eqrl.TAAC(trajectory=eqrl.LinearTrajectory()),
    "TAAC-Q": eqrl.TAAC(trajectory=eqrl.QuadraticTrajectory()),
}


@eqx.filter_jit
def _updates(
    agent: eqrl.AbstractAgent[Any, Any, Any],
    state: Any,
    batch: eqrl.Transition[Any],
    num_updates: Int[Array, ""],
    key: PRNGKeyArray,
) -> PyTree:
    def update(step: Int[Array, ""], state: Any) -> Any:
        return agent.update(state, batch, step=step, key=jr.fold_in(key, step))[0]

    return filter_fori_loop(0, num_updates, update, state)


def make_run(
    agent: eqrl.AbstractAgent[Any, Any, Any], env: eqrl.envs.AbstractEnv, updates: int
) -> Callable[[], PyTree]:
    """A function that makes a number of updates from one batch of transitions."""
    trainer = eqrl.Trainer(
        batch_size=NUM_TRANSITIONS // (agent.sequence_length or 1), warmup_steps=1_000
    )
    key = jr.key(0)
    state, counts = eqrl.jit_init(trainer, agent, env, key=jr.fold_in(key, 0))
    state, counts, _ = eqrl.jit_run(
        trainer, agent, env, state, counts, num_steps=1_000, key=jr.fold_in(key, 1)
    )
    buffer = eqrl.ReplayBuffer(
        capacity=trainer.capacity,
        batch_size=trainer.batch_size,
        sequence_length=agent.sequence_length or 1,
    )
    sample = eqx.filter_jit(buffer.sample)
    batch = sample(state.replay, counts, key=jr.fold_in(key, 2))
    update_key = jr.fold_in(key, 3)
    return lambda: _updates(agent, state.agent, batch, jnp.asarray(updates), update_key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    env = eqrl.envs.make("brax/fast", max_steps=1000)
    runs = {
        name: make_run(agent, env, arguments.updates) for name, agent in AGENTS.items()
    }
    times = side_by_side(runs, repeats=arguments.repeats)
    print("| agent | updates/s, median | time / SAC's |")
    print("|---|---|---|")
    for name in runs:
        speed = arguments.updates / statistics.median(times[name])
        ratio = median_ratio(times[name], times["SAC"])
        print(f"| {name} | {speed:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
