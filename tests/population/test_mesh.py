"""The same population on one device and on eight."""

import os
import subprocess
import sys

import jax
import pytest
from jax.sharding import Mesh

from eqrl._population.mesh import check_mesh


_PROGRAM = """
import jax
import jax.random as jr
import numpy as np

import eqrl
from eqrl.envs import Point
from tests.agents_under_test import sac


pbt = eqrl.PBT(
    where=lambda a: (a.actor_lr, a.discount),
    priors=(eqrl.LogUniform(1e-4, 1e-2), eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1))),
    num_replaced=3,
    num_elite=3,
)


def train(mesh):
    return eqrl.train_population(
        sac(),
        Point(max_steps=5, goal=(0.3, 0.1)),
        eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=100),
        pbt,
        size=16,
        num_generations=3,
        steps_per_generation=40,
        num_episodes=2,
        key=jr.key(0),
        mesh=mesh,
        members="in_turn",
    )


one, eight = train(None), train(jax.make_mesh((8,), ("population",)))
assert len(jax.devices()) == 8
leaf = jax.tree.leaves(eight.states)[0]
assert len(leaf.sharding.device_set) == 8, leaf.sharding
assert np.array_equal(one.parents, eight.parents)
assert (one.parents[1:] != np.arange(16)).sum() == 6
np.testing.assert_allclose(one.returns, eight.returns, rtol=1e-4, atol=1e-4)
for name, values in one.hyperparameters.items():
    np.testing.assert_allclose(values, eight.hyperparameters[name], rtol=1e-5)
print("the same")
"""


def test_a_population_on_eight_devices_has_the_history_of_one() -> None:
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "the same" in result.stdout


def test_a_population_that_does_not_divide_is_refused() -> None:
    devices = jax.devices() * 3
    mesh = Mesh(devices, ("population",))
    with pytest.raises(ValueError, match=r"`size=4`.*3 devices.*3 and 6"):
        check_mesh(mesh, 4)


def test_a_mesh_of_other_axes_is_refused() -> None:
    mesh = Mesh(jax.devices(), ("data",))
    with pytest.raises(ValueError, match=r"axes \('data',\).*`population`"):
        check_mesh(mesh, 4)
