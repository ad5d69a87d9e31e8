"""The same population on one device and on eight."""

import os
import subprocess
import sys

import jax
import pytest
from jax.sharding import Mesh

from eqrl._training.mesh import check_mesh


_HISTORY = """
import tempfile

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jax.sharding import Mesh

import eqrl
from eqrl.envs import Point
from tests.agents_under_test import sac


pbt = eqrl.PBT(
    where=lambda a: (a.actor_lr, a.discount),
    priors=(eqrl.LogUniform(1e-4, 1e-2), eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1))),
    num_replaced=3,
    num_elite=3,
)


def train(mesh, num_generations=3, **options):
    return eqrl.train_population(
        sac(),
        Point(max_steps=5, goal=(0.3, 0.1)),
        eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=100),
        pbt,
        size=16,
        num_generations=num_generations,
        steps_per_generation=40,
        num_episodes=2,
        key=jr.key(0),
        mesh=mesh,
        members="in_turn",
        **options,
    )


mesh = jax.make_mesh((8,), ("population",))
single = Mesh(jax.devices()[:1], ("population",))
one, eight = train(single), train(mesh)
assert len(jax.devices()) == 8
leaf = jax.tree.leaves(eight.states)[0]
assert len(leaf.sharding.device_set) == 8, leaf.sharding
assert np.array_equal(one.parents, eight.parents)
assert (one.parents[1:] != np.arange(16)).sum() == 6
assert np.array_equal(one.returns, eight.returns)
for name, values in one.hyperparameters.items():
    assert np.array_equal(values, eight.hyperparameters[name])
# From one device to eight, and from eight to one.
for first, second in ((single, mesh), (mesh, single)):
    begun = train(first, num_generations=1)
    went_on = train(second, num_generations=2, initial=begun)
    assert np.array_equal(one.parents, went_on.parents)
    assert np.array_equal(one.returns, went_on.returns)


# Where no devices are given, they are all used, and what is returned is on one.
def same(tree, other):
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        if eqx.is_inexact_array(x):
            assert np.array_equal(x, y, equal_nan=True)
        if isinstance(x, jax.Array):
            assert len(x.sharding.device_set) == 1
            assert not x.committed


def spread(*arguments):
    leaf = jax.tree.leaves(arguments[-1])[0]
    numbers.append(len(leaf.sharding.device_set))


numbers = []
same(train(None, callback=lambda step, metrics, solution: spread(solution.states)), one)
member = eqrl.member(eight.states, 3)
same(member, eqrl.member(one.states, 3))


seeds_of = (
    sac(),
    Point(max_steps=5, goal=(0.3, 0.1)),
    eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=100),
)


def train_seeds(**options):
    evaluations = eqrl.Evaluations(
        *seeds_of[:2], every=20, num_episodes=2, key=jr.key(1)
    )
    return eqrl.train_seeds(
        *seeds_of,
        num_seeds=16,
        key=jr.key(0),
        log_every=20,
        evaluations=evaluations,
        **{"num_steps": 60, **options},
    )


seeds = train_seeds(callback=spread)
assert numbers == [8] * 6, numbers
same(seeds, train_seeds(mesh=single))
with tempfile.TemporaryDirectory() as folder:
    eqrl.save_solution(folder, train_seeds(num_steps=20, mesh=mesh))
    begun = eqrl.load_solution(folder, *seeds_of, mesh=mesh)
assert len(begun.trainer_state.failed.sharding.device_set) == 8
same(train_seeds(num_steps=40, initial=begun), seeds)
assert np.isfinite(seeds.metrics["evaluation_return"]).all()
print("passed")
"""

_EXPLOIT = """
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl
from eqrl._training.mesh import automatic, replicate, shard
from tests.population.pusher import Pusher


mesh = automatic(jax.make_mesh((8,), ("population",)))
assert mesh.size == 8
pbt = eqrl.PBT(
    where=lambda a: (a.rate,),
    priors=(eqrl.Uniform(0.9, 0.99),),
    selection=eqrl.Tournament(),
)
exploit = eqx.filter_jit(
    lambda agents, states, scores, key, mesh: pbt.exploit_over(
        mesh, agents, states, scores, key=key
    ),
    donate="all",
)


@jax.jit
def population():
    odd = jnp.array([-0.0, 1e-40, jnp.nan, jnp.inf])
    states = {
        "floats": jnp.tile(odd, (16, 400_000, 2)) * jnp.arange(16.0).reshape(16, 1, 1),
        "half": jnp.arange(48, dtype=jnp.bfloat16).reshape(16, 3),
        "keys": jr.split(jr.key(1), (16, 2)),
        "flags": jnp.arange(16) % 3 == 0,
        "numbers": -jnp.arange(32, dtype=jnp.int8).reshape(16, 2),
    }
    agents = pbt.init(Pusher(), 16, key=jr.key(2))
    return agents, states, jnp.sin(7.0 * jnp.arange(16))


def bits(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jr.key_data(jax.device_get(x))
    return np.asarray(x).tobytes()


one = exploit(*population(), jr.key(3), None)
parents = np.asarray(one[2])
assert (parents != np.arange(16)).sum() > 5
# Some parents are children, and are copied before they are overwritten: in another
# order than that of their indices.
grandparents = np.flatnonzero(parents[parents] != parents)
assert np.any(parents[grandparents] < grandparents), parents
assert bits(one[1]["numbers"][:, 0]) == bits(
    jnp.asarray(-2 * parents, jnp.int8)
), parents
agents, states, scores = population()
scores, key = replicate((scores, jr.key(3)), mesh)
arguments = (*shard((agents, states), mesh), scores, key, mesh)
compiled = exploit.lower(*arguments).compile()
memory = compiled.compiled.memory_analysis()
eight = compiled(*arguments)
for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
    if eqx.is_array(x):
        assert bits(x) == bits(y), (x, y)

# On each device, which has two members of 3.2 MB; pieces of 0.26 MB travel.
assert memory.argument_size_in_bytes > 5_000_000, memory
assert memory.temp_size_in_bytes < 0.1 * memory.argument_size_in_bytes, memory
assert memory.alias_size_in_bytes > 0.99 * memory.argument_size_in_bytes, memory
print("passed")
"""


_GATHER = """
import tracemalloc

import jax
import jax.random as jr
import numpy as np

from eqrl._storage.orbax import is_intact, pieces_of
from eqrl._training.mesh import gather, replicate, shard


mesh = jax.make_mesh((4,), ("population",))
size = 2**20


def held():
    shards = [shard for x in jax.live_arrays() for shard in x.addressable_shards]
    buffers = {x.data.unsafe_buffer_pointer(): x.data.nbytes for x in shards}
    return sum(buffers.values()) / size


stack = shard([np.full((4, size // 16), i, np.float32) for i in range(16)], mesh)
same = replicate(np.arange(3), mesh)
before = held()
tracemalloc.start()
gathered = gather((stack, same))
most = tracemalloc.get_traced_memory()[1]
# The arrays of the tree and of the result, and at a time a few arrays of NumPy, which
# JAX frees a little later, where all sixteen would be a third copy.
assert before > 15.9, before
assert held() - before < 16.1, (held(), before)
assert most < 8 * size, most
for index, x in enumerate(gathered[0]):
    assert np.all(np.asarray(x) == index)
assert np.array_equal(gathered[1], np.arange(3))
keys = shard(jr.split(jr.key(0), 4), mesh)
gathered += (gather(keys),)
assert np.array_equal(jr.key_data(gathered[2]), jr.key_data(keys))
for x in jax.tree.leaves(gathered):
    assert len(x.sharding.device_set) == 1 and not x.committed, x.sharding
# What each device holds has a digest of its own.
pieces = pieces_of({"": stack[0]})[""]
assert [piece.index for piece in pieces] == [
    ((row, row + 1), (0, size // 16)) for row in range(4)
]
assert is_intact(stack[0], pieces) and is_intact(gathered[0][0], pieces)
changed = np.array(stack[0])
changed[3, -1] = 1
assert not is_intact(changed, pieces)
print("passed")
"""


def _run_on_devices(program: str, count: int = 8) -> None:
    # The later of two values of a flag counts.
    number = f"--xla_force_host_platform_device_count={count}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {number}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "passed" in result.stdout


@pytest.mark.long
def test_exploiting_on_eight_devices_is_that_on_one_in_little_memory() -> None:
    _run_on_devices(_EXPLOIT)


@pytest.mark.long
def test_training_on_eight_devices_is_that_on_one() -> None:
    _run_on_devices(_HISTORY)


@pytest.mark.long
def test_gathering_from_four_devices_holds_each_array_twice_at_most() -> None:
    _run_on_devices(_GATHER, 4)


def test_a_population_that_does_not_divide_is_an_error() -> None:
    devices = jax.devices() * 3
    mesh = Mesh(devices, ("population",))
    with pytest.raises(ValueError, match=r"`size=4`.*3 devices.*3 and 6"):
        check_mesh(mesh, 4)


def test_a_mesh_of_other_axes_is_an_error() -> None:
    mesh = Mesh(jax.devices(), ("data",))
    with pytest.raises(ValueError, match=r"axes \('data',\).*`population`"):
        check_mesh(mesh, 4)
