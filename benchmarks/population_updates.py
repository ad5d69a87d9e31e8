"""Time of updates of 1 to 32 members, relative to one: figure 2 of Flajolet et al.

SAC with HalfCheetah's sizes, hidden layers of 256 and 256 and batches of 256, drawn
from a filled replay of each member; no environment is stepped. A call makes 1 or 50
updates of every member, together, as one batch of members, or in turn. The protocol is
that of https://arxiv.org/abs/2206.08888, which was measured on a GPU. Run it as
`nox -s benchmarks -- population_updates`.
"""

import argparse
import functools
import itertools
import statistics
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Key

import eqrl

from .measure import machine, seconds


SPEC = eqrl.EnvSpec(observation_size=17, action_size=6)
AGENT = eqrl.SAC()
CAPACITY, BATCH_SIZE = 10_000, 256


def filled_replay(key: Key[Array, ""]) -> Any:
    """A full replay of random transitions."""
    draw = lambda index, *shape: jr.normal(jr.fold_in(key, index), (CAPACITY, *shape))
    no = jnp.zeros(CAPACITY, bool)
    return eqrl.Transition(
        observation=draw(0, 17),
        action=jnp.tanh(draw(1, 6)),
        reward=draw(2),
        next_observation=draw(3, 17),
        terminated=no,
        truncated=no,
        timestep=jnp.zeros(CAPACITY, int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=None,
    )


def update_member(num_updates: int, member: tuple[Any, Any, Any]) -> Any:
    """Updates of one member, each from a batch of its own replay."""
    state, replay, key = member

    def update(state: Any, key: Key[Array, ""]) -> tuple[Any, None]:
        draw_key, update_key = jr.split(key)
        rows = jr.randint(draw_key, (BATCH_SIZE,), 0, CAPACITY)
        batch = jax.tree.map(lambda x: x[rows], replay)
        step = jnp.zeros((), int)
        return AGENT.update(state, batch, step=step, key=update_key)[0], None

    keys = jr.split(key, num_updates + 1)
    return lax.scan(update, state, keys[1:])[0], keys[0]


@functools.partial(jax.jit, static_argnames=("num_updates", "together"))
def update_all(
    states: Any, replays: Any, keys: Any, *, num_updates: int, together: bool
) -> Any:
    of_member = functools.partial(update_member, num_updates)
    members = (states, replays, keys)
    return jax.vmap(of_member)(members) if together else lax.map(of_member, members)


def times_of(
    size: int, *, num_updates: int, together: bool, repeats: int
) -> list[float]:
    """Milliseconds of a call, each of 50 updates of a member in all, after one more."""
    keys = jr.split(jr.key(size), size)
    replays = eqx.filter_vmap(filled_replay)(keys)
    states = eqx.filter_vmap(lambda key: AGENT.init(SPEC, key=key))(keys)

    def run(num_calls: int) -> Any:
        nonlocal states, keys
        for _ in range(num_calls):
            states, keys = update_all(
                states, replays, keys, num_updates=num_updates, together=together
            )
        return states

    jax.block_until_ready(run(1))
    num_calls = 50 // num_updates
    return [1000 * seconds(lambda: run(num_calls)) / num_calls for _ in range(repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    print(machine())
    print("updates,together,members,milliseconds,relative,quickest,slowest")
    for num_updates, together in itertools.product((1, 50), (True, False)):
        alone = None
        for size in arguments.sizes:
            times = times_of(
                size,
                num_updates=num_updates,
                together=together,
                repeats=arguments.repeats,
            )
            median = statistics.median(times)
            alone = median if alone is None else alone
            print(
                f"{num_updates},{together},{size},{median:.1f},{median / alone:.2f},"
                f"{min(times):.1f},{max(times):.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
