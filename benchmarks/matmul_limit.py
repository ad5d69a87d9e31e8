"""How near the updates of a population come to the matmuls they consist of.

Eight members, hidden layers of 256 and 256, batches of 256, with the sizes of Ant's
observations and actions, laid over two devices which this module asks XLA to make of
the processor, members one after another on each. Timed side by side: updates of SAC and
TD3 alone, without environment and replay, and nothing but the same matmuls.

The matmuls are the `dot_general`s of the update as JAX traces it, forward and backward;
one of `batch` products of `rows x inner` with `inner x columns` counts
2 * batch * rows * inner * columns operations. What TD3 does at every second update only
counts by half. Run it as `nox -s benchmarks -- matmul_limit`.
"""

import argparse
import collections
import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any


# Before JAX is imported, which reads it then.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._population.mesh import automatic, on_each_device, replicate, shard
from eqrl._population.run import map_members
from eqrl._pytree.control_flow import filter_fori_loop

from .measure import median_ratio, side_by_side


SPEC = eqrl.EnvSpec(observation_size=27, action_size=8)
BATCH_SIZE = 256

Run = Callable[[], PyTree]


@dataclasses.dataclass(frozen=True)
class Matmul:
    """A `dot_general`; `dimensions` says which axes it contracts and which it maps."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimensions: Any
    dtype: str

    @property
    def operations(self) -> int:
        (inner, _), (batch, _) = self.dimensions
        shared = math.prod(self.left[axis] for axis in (*inner, *batch))
        in_batch = math.prod(self.left[axis] for axis in batch)
        return (
            2
            * math.prod(self.left)
            * math.prod(self.right)
            * in_batch
            // (shared * in_batch)
        )


def matmuls_of(jaxpr: Jaxpr, share: Fraction) -> Iterator[tuple[Matmul, Fraction]]:
    """All matmuls in a program, each with how often it is run.

    **Arguments:**

    - `jaxpr`: of the program.
    - `share`: of how many runs take a branch.
    """
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            operands: list[Any] = [variable.aval for variable in equation.invars]
            left, right = operands
            yield (
                Matmul(
                    left=tuple(left.shape),
                    right=tuple(right.shape),
                    dimensions=equation.params["dimension_numbers"],
                    dtype=str(left.dtype),
                ),
                Fraction(1),
            )
        times = Fraction(1)
        if name == "cond":
            times = share
        elif name == "scan":
            times = Fraction(equation.params["length"])
        for inner in _jaxprs(equation.params):
            found = list(matmuls_of(inner, share))
            if found and name == "while":
                raise ValueError("How often a loop runs its matmuls is not known.")
            for matmul, count in found:
                yield matmul, count * times


def _jaxprs(parameters: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in parameters.values():
        for entry in value if isinstance(value, tuple | list) else [value]:
            if isinstance(entry, ClosedJaxpr):
                yield entry.jaxpr
            elif isinstance(entry, Jaxpr):
                yield entry


def make_batch(key: PRNGKeyArray) -> eqrl.Transition[None]:
    keys = jr.split(key, 4)
    observations = (BATCH_SIZE, SPEC.observation_size)
    return eqrl.Transition(
        observation=jr.normal(keys[0], observations),
        action=jr.uniform(keys[1], (BATCH_SIZE, SPEC.action_size), minval=-1),
        reward=jr.normal(keys[2], (BATCH_SIZE,)),
        next_observation=jr.normal(keys[3], observations),
        terminated=jnp.zeros(BATCH_SIZE, bool),
        truncated=jnp.zeros(BATCH_SIZE, bool),
        timestep=jnp.zeros(BATCH_SIZE, int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=None,
    )


@eqx.filter_jit(donate="all-except-first")
def _update(
    kept: tuple[Any, Any, PRNGKeyArray, Int[Array, ""]], states: Any, mesh: Mesh
) -> Any:
    agents, batches, key, num_updates = kept

    def update_share(stacked: Any, shared: Any) -> tuple[Any, None]:
        key, num_updates = shared

        def update_member(agent: Any, state: Any, batch: Any) -> Any:
            def update(step: Int[Array, ""], state: Any) -> Any:
                step_key = jr.fold_in(key, step)
                state, _ = agent.update(state, batch, step=step, key=step_key)
                return state

            # Its length is not known when it is compiled, as in training.
            state = filter_fori_loop(0, num_updates, update, state)
            return eqx.filter(state, eqx.is_array)

        return map_members(update_member, "in_turn", stacked), None

    stacked = (agents, states, batches)
    states_after, _ = on_each_device(update_share, mesh, stacked, (key, num_updates))
    return eqx.combine(states_after, eqx.filter(states, eqx.is_array, inverse=True))


def make_update_run(agent: Any, *, size: int, num_updates: int, mesh: Mesh) -> Run:
    agents = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), agent)
    states = eqx.filter_vmap(lambda agent, key: agent.init(SPEC, key=key))(
        agents, jr.split(jr.key(0), size)
    )
    batches = jax.vmap(make_batch)(jr.split(jr.key(1), size))
    agents, states, batches = shard((agents, states, batches), mesh)
    key, length = replicate((jr.key(2), jnp.asarray(num_updates, int)), mesh)

    def run() -> PyTree:
        nonlocal states
        states = _update((agents, batches, key, length), states, mesh)
        return eqx.filter(states, eqx.is_array)

    return run


@eqx.filter_jit
def _multiply(
    operands: Any,
    counts: tuple[tuple[Matmul, int], ...],
    num_rounds: Int[Array, ""],
    mesh: Mesh,
) -> Float[Array, " population"]:
    def multiply_member(operands: Any, num_rounds: Int[Array, ""]) -> Float[Array, ""]:
        def multiply_all(index: Int[Array, ""], total: Float[Array, ""]) -> Any:
            del index
            for (matmul, count), pair in zip(counts, operands, strict=True):
                total = lax.fori_loop(
                    0, count, lambda _, x, m=matmul, p=pair: _once(m, p, x), total
                )
            return total

        return lax.fori_loop(0, num_rounds, multiply_all, jnp.zeros(()))

    def multiply_share(stacked: Any, num_rounds: Int[Array, ""]) -> tuple[Any, None]:
        return lax.map(lambda x: multiply_member(x, num_rounds), stacked), None

    totals, _ = on_each_device(multiply_share, mesh, operands, num_rounds)
    return totals


def _once(
    matmul: Matmul, operands: tuple[Array, Array], total: Float[Array, ""]
) -> Float[Array, ""]:
    # Behind the barriers neither that the operands are always the same nor that one
    # number of the product is used is known, so all of it is computed each time.
    left, right, total = lax.optimization_barrier((*operands, total))
    product = lax.dot_general(left, right, matmul.dimensions)
    return total + lax.optimization_barrier(product).ravel()[0]


def make_matmul_run(
    counts: list[tuple[Matmul, int]], *, size: int, num_rounds: int, mesh: Mesh
) -> Run:
    def make(matmul: Matmul, key: PRNGKeyArray) -> tuple[Array, Array]:
        left_key, right_key = jr.split(key)
        return (
            jr.normal(left_key, (size, *matmul.left), matmul.dtype),
            jr.normal(right_key, (size, *matmul.right), matmul.dtype),
        )

    keys = jr.split(jr.key(3), len(counts))
    operands = [make(matmul, keys[i]) for i, (matmul, _) in enumerate(counts)]
    operands = shard(operands, mesh)
    length = replicate(jnp.asarray(num_rounds, int), mesh)
    return lambda: _multiply(operands, tuple(counts), length, mesh)


def count_matmuls(agent: Any, share: Fraction) -> list[tuple[Matmul, Fraction]]:
    """How often an update runs each matmul, on average."""
    arrays, static = eqx.partition(agent.init(SPEC, key=jr.key(0)), eqx.is_array)

    def update(arrays: Any, batch: Any, step: Int[Array, ""], key: PRNGKeyArray) -> Any:
        state = eqx.combine(arrays, static)
        state, _ = agent.update(state, batch, step=step, key=key)
        return eqx.filter(state, eqx.is_array)

    batch = make_batch(jr.key(1))
    closed = jax.make_jaxpr(update)(arrays, batch, jnp.zeros((), int), jr.key(2))
    totals: dict[Matmul, Fraction] = collections.defaultdict(Fraction)
    for matmul, count in matmuls_of(closed.jaxpr, share):
        totals[matmul] += count
    return list(totals.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    mesh = automatic(jax.make_mesh((jax.device_count(),), ("population",)))
    assert mesh is not None
    td3 = eqrl.TD3()
    # Each agent with the number of updates after which all repeats.
    agents = {"SAC": (eqrl.SAC(), 1), "TD3": (td3, td3.policy_delay)}
    print(
        f"Sizes of Ant: observations of {SPEC.observation_size}, actions of "
        f"{SPEC.action_size}; {arguments.size} members on {mesh.size} devices"
    )
    print(
        "| agent | matmuls an update | MFLOP an update | update, GFLOP/s | "
        "matmuls alone, GFLOP/s | update / alone |"
    )
    print("|---|---|---|---|---|---|")
    for name, (agent, period) in agents.items():
        counts = count_matmuls(agent, Fraction(1, period))
        operations = float(sum(matmul.operations * n for matmul, n in counts))
        sizes = {"size": arguments.size, "mesh": mesh}
        num_rounds = math.ceil(arguments.updates / period)
        in_round = [(matmul, int(n * period)) for matmul, n in counts]
        times = side_by_side(
            {
                "update": make_update_run(
                    agent, num_updates=num_rounds * period, **sizes
                ),
                "alone": make_matmul_run(in_round, num_rounds=num_rounds, **sizes),
            },
            repeats=arguments.repeats,
        )
        total = operations * arguments.size * num_rounds * period / 1e9
        update, alone = (
            total / statistics.median(times[run]) for run in ("update", "alone")
        )
        ratio = median_ratio(times["alone"], times["update"])
        print(
            f"| {name} | {float(sum(n for _, n in counts)):g} | {operations / 1e6:.1f} "
            f"| {update:.1f} | {alone:.1f} | {ratio:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
