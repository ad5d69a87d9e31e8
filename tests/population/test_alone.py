"""Seeds and members have the bits of the agent alone, at the default sizes."""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.random as jr
import pytest

import eqrl
from eqrl._training.train import Crew, init_members
from tests.agents_under_test import env_of, trainer_of

from .alone import AGENTS, KEY, TRAINER


# A map over them rounds its orthogonal weights otherwise, with XLA's
# optimizations and layers of this size.
@pytest.mark.optimized
def test_in_turn_each_begins_as_it_does_alone() -> None:
    agent = AGENTS["DiscreteSAC"]
    env, trainer = env_of(agent), trainer_of(agent, TRAINER)
    keys = jr.split(KEY, 2)
    alone, counts_alone = eqrl.jit_init(trainer, agent, env, key=keys[1])
    agents = eqx.filter_vmap(lambda _: agent)(keys)
    crew = Crew(trainer, agents, env, keys, True, "in_turn", None)
    states, counts = init_members(crew, keys)
    assert eqx.tree_equal(jax.tree.map(lambda x: x[1], states), alone)
    assert eqx.tree_equal(counts, counts_alone)


@pytest.mark.long
@pytest.mark.parametrize("name", list(AGENTS))
def test_in_turn_and_one_to_a_device_each_is_as_it_is_alone(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.population.alone", name],
        # None of the flags that make these tests compile sooner: as users compile.
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "passed" in result.stdout
