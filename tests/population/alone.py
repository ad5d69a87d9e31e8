"""Trains agents of default sizes alone, in turn, and each on a device of its own.

`python -m tests.population.alone NAME ...`, with two devices, ends with an error unless
each of two seeds, and of two members, has the same bits in all three ways.
"""

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh

import eqrl
from eqrl._agents.base import AnyAgent
from tests.agents_under_test import env_of, trainer_of


AGENTS: dict[str, AnyAgent] = {
    "SAC": eqrl.SAC(),
    "TD3": eqrl.TD3(),
    "TAAC": eqrl.TAAC(window_length=2),
    "DQN": eqrl.DQN(),
    "DiscreteSAC": eqrl.DiscreteSAC(),
    "PPO": eqrl.PPO(),
    "PPO-discrete": eqrl.PPO(make_actor=eqrl.nn.Choice()),
    "PQN": eqrl.PQN(num_minibatches=4),
    "Normalized(PPO)": eqrl.Normalized(eqrl.PPO()),
    "DIAYN(SAC)": eqrl.diayn(eqrl.SAC(), 3, descriptor="observation"),
    "DISk(SAC)": eqrl.Intrinsic(
        eqrl.SAC(), eqrl.Incremental(descriptor="observation", recent_capacity=8)
    ),
}
NUM_STEPS = 80
KEY = jr.key(0)
TRAINER = eqrl.Trainer(num_envs=2, batch_size=8, warmup_steps=20, capacity=100)


def train(kind: str, agent: AnyAgent, num_devices: int) -> Any:
    """The states of two seeds or members, as a stack."""
    env, trainer = env_of(agent), trainer_of(agent, TRAINER)
    mesh = Mesh(jax.devices()[:num_devices], ("population",))
    if kind == "seeds":
        return eqrl.train_seeds(
            agent,
            env,
            trainer,
            num_seeds=2,
            num_steps=NUM_STEPS,
            key=KEY,
            mesh=mesh,
            members="in_turn",
        ).trainer_state
    return eqrl.train_population(
        agent,
        env,
        trainer,
        None,
        size=2,
        num_generations=2,
        steps_per_generation=NUM_STEPS // 2,
        num_episodes=1,
        key=KEY,
        mesh=mesh,
        members="in_turn",
    ).trainer_states


def train_alone(kind: str, agent: AnyAgent, index: int) -> Any:
    """The state of one of them, trained by itself."""
    env, trainer = env_of(agent), trainer_of(agent, TRAINER)
    if kind == "seeds":
        key = jr.split(KEY, 2)[index]
        return eqrl.train(
            agent, env, trainer, num_steps=NUM_STEPS, key=key
        ).trainer_state
    # As `train_population` derives them from its key.
    init_key = jr.split(jr.fold_in(KEY, 1), 2)[index]
    run_key = jr.fold_in(jr.fold_in(KEY, 2), index)
    state, counts = eqrl.jit_init(trainer, agent, env, key=init_key)
    state, _, _ = eqrl.jit_run(
        trainer, agent, env, state, counts, num_steps=NUM_STEPS, key=run_key
    )
    return state


def check(kind: str, name: str) -> None:
    """Compares the three ways."""
    in_turn, spread = (train(kind, AGENTS[name], number) for number in (1, 2))
    assert len(spread.failed.sharding.device_set) == 2
    for index in range(2):
        alone = train_alone(kind, AGENTS[name], index)
        assert not jnp.any(alone.failed)
        for way, stack in (("in turn", in_turn), ("one to a device", spread)):
            member = jax.device_get(_arrays(eqrl.member(stack, index)))
            same = eqx.tree_equal(member, jax.device_get(_arrays(alone)))
            assert same, f"{name}, {kind}, {way}: {index} is not as it is alone"


def _arrays(tree: Any) -> Any:
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(
        lambda x: jr.key_data(x) if is_key(x) else x, eqx.filter(tree, eqx.is_array)
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        check("seeds", name)
        check("members", name)
    print("passed")
