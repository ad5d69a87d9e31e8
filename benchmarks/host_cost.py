"""The cost of a step of simulators outside JAX, within a compiled training.

An empty simulator and an environment in JAX that does nothing take turns in one
process, with the same sizes and networks, and train without updates: their difference
is the cost of the interface. Run it as `nox -s benchmarks -- host_cost`.

With `--envpool` it is HalfCheetah of EnvPool, in turns with the bare pool, and with a
loop in Python which acts on the device, steps the pool and stores, as CleanRL does:
`.nox/worlds/bin/python -m benchmarks.host_cost --envpool`.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

import eqrl
from eqrl.envs import AbstractEnv, Outcome
from eqrl.envs._host import AbstractHostEnv, HostState, new_owner
from eqrl.envs._simulators import AbstractSimulators, Began, MakeSimulators, Stepped


# Those of HalfCheetah.
SPEC = eqrl.EnvSpec(observation_size=17, action_size=6, max_steps=1000)


class Empty(AbstractSimulators):
    """Does nothing, in arrays that are there already."""

    def __init__(self, number: int) -> None:
        self.observation = np.zeros((number, SPEC.observation_size), np.float32)
        self.reward = np.zeros(number, np.float32)
        self.flag = np.zeros(number, bool)

    def begin(self, rows: Int[np.ndarray, " rows"]) -> Began:
        return Began(self.observation[: len(rows)], None)

    def step(self, rows: Int[np.ndarray, " rows"], actions: Any) -> Stepped:
        size = len(rows)
        flag = self.flag[:size]
        return Stepped(self.observation[:size], self.reward[:size], flag, flag, None)

    def picture(self, row: int) -> np.ndarray:
        raise NotImplementedError

    def save(self, row: int) -> None:
        return None

    def restore(self, row: int, saved: bytes) -> bool:
        return False

    def close(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class MakeEmpty:
    """Makes empty simulators."""

    def __call__(self, seeds: Sequence[int]) -> AbstractSimulators:
        return Empty(len(seeds))


class Outside(AbstractHostEnv):
    """An environment of empty simulators."""

    _make: MakeSimulators = eqx.field(static=True)
    _owner: Int[Array, ""]
    _active: Bool[Array, ""] | None
    _begun: tuple[Bool[Array, ""], HostState] | None

    def __init__(self) -> None:
        self._make = MakeEmpty()
        self._owner, self._active, self._begun = new_owner(), None, None

    @property
    def spec(self) -> eqrl.EnvSpec:
        return SPEC


class Inside(AbstractEnv[Any]):
    """An environment in JAX that does nothing."""

    @property
    def spec(self) -> eqrl.EnvSpec:
        return SPEC

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Float[Array, " obs"]]:
        del key
        return jnp.zeros((), int), jnp.zeros(SPEC.observation_size)

    def step(
        self, state: Any, action: Any, *, key: PRNGKeyArray
    ) -> tuple[Any, Outcome]:
        del action, key
        no = jnp.zeros((), bool)
        outcome = Outcome(
            observation=jnp.zeros(SPEC.observation_size),
            reward=jnp.zeros(()),
            terminated=no,
            truncated=no & False,
        )
        return state + 1, outcome

    def state_descriptor(self, state: Any) -> None:
        del state
        return None


def measure(agent: Any, env: Any, num_envs: int, num_rows: int) -> Iterator[float]:
    """Microseconds of a step of all environments, of several calls."""
    trainer = eqrl.Trainer(
        num_envs=num_envs,
        batch_size=1,
        capacity=num_envs * 100,
        warmup_steps=num_envs,
        updates_per_iteration=0,
    )
    state, counts = eqrl.jit_init(trainer, agent, env, key=jr.key(0))
    while True:
        begin = time.perf_counter()
        state, counts, _ = eqrl.jit_run(
            trainer,
            agent,
            env,
            state,
            counts,
            num_steps=num_rows * num_envs,
            key=jr.key(0),
        )
        jax.block_until_ready(jax.tree.leaves(counts))
        yield 1e6 * (time.perf_counter() - begin) / num_rows


def measure_pool(num_envs: int, num_rows: int, *, acts: bool) -> Iterator[float]:
    """Microseconds of a step of EnvPool's HalfCheetah, in a loop in Python.

    With `acts` an agent acts and rows are stored; otherwise noise as great as its own
    is sent, since the actions change what the physics costs.
    """
    import envpool  # pyright: ignore[reportMissingImports]

    pool = envpool.make("HalfCheetah-v5", "gymnasium", num_envs=num_envs)
    observation = pool.reset()[0].astype(np.float32)
    shape = (num_rows, num_envs)
    noise = np.random.default_rng(0).normal(size=(*shape, SPEC.action_size))
    actions = np.clip(0.1 * noise, -1, 1)
    stored = {
        "observation": np.zeros((*shape, SPEC.observation_size), np.float32),
        "action": np.zeros((*shape, SPEC.action_size), np.float32),
        "reward": np.zeros(shape, np.float32),
        "over": np.zeros(shape, bool),
    }
    agent = eqrl.TD3()
    state = agent.init(SPEC, key=jr.key(0))

    @jax.jit
    def act(observation: Any, key: Any) -> Any:
        key, now = jr.split(key)
        chosen = jax.vmap(
            lambda one, key: agent.act(state, None, one, mode="sample", key=key)
        )
        return chosen(observation, jr.split(now, num_envs))[0], key

    key = jr.key(0)
    while True:
        begin = time.perf_counter()
        for row in range(num_rows):
            if not acts:
                pool.step(actions[row])
                continue
            action, key = act(observation, key)
            stored["action"][row] = action
            seen, reward, terminated, truncated, _ = pool.step(
                stored["action"][row].astype(float)
            )
            observation = seen.astype(np.float32)
            stored["observation"][row] = observation
            stored["reward"][row] = reward
            stored["over"][row] = terminated | truncated
        yield 1e6 * (time.perf_counter() - begin) / num_rows


def beside_the_pool(num_pairs: int, num_rows: int) -> None:
    """Prints what EnvPool's HalfCheetah costs bare, in a loop and in training."""
    print("| environments | bare, us | acting | loop in Python | training | ratio |")
    print("|---|---|---|---|---|---|")
    env = eqrl.envs.make("envpool/HalfCheetah-v5")
    for num_envs in (1, 8, 64):
        ways = (
            measure_pool(num_envs, num_rows, acts=False),
            measure(eqrl.TD3(), Inside(), num_envs, num_rows),
            measure_pool(num_envs, num_rows, acts=True),
            measure(eqrl.TD3(), env, num_envs, num_rows),
        )
        _ = [next(way) for way in ways]
        rounds = [[next(way) for way in ways] for _ in range(num_pairs)]
        costs = [statistics.median(each) for each in zip(*rounds, strict=True)]
        ratio = statistics.median(row[3] / (row[0] + row[1]) for row in rounds)
        shown = " | ".join(f"{cost:.0f}" for cost in costs)
        print(f"| {num_envs} | {shown} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envpool", action="store_true", help="HalfCheetah of EnvPool")
    parser.add_argument("--pairs", type=int, default=15, help="of calls")
    parser.add_argument("--rows", type=int, default=2_000, help="of each call")
    arguments = parser.parse_args()
    if arguments.envpool:
        beside_the_pool(arguments.pairs, arguments.rows)
        return
    print(
        "| environments | inside JAX, us | outside, us | difference | least to most |"
    )
    print("|---|---|---|---|---|")
    agent = eqrl.TD3()
    for num_envs in (1, 8, 64):
        inside = measure(agent, Inside(), num_envs, arguments.rows)
        outside = measure(agent, Outside(), num_envs, arguments.rows)
        _ = next(inside), next(outside)  # They compile.
        pairs = [(next(inside), next(outside)) for _ in range(arguments.pairs)]
        costs = [there - here for here, there in pairs]
        here, there = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(
            f"| {num_envs} | {here:.1f} | {there:.1f} | {statistics.median(costs):.1f} "
            f"| {min(costs):.1f} to {max(costs):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
