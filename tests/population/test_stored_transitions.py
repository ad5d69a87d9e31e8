"""What the replay of a solution holds is taken out of it, in order."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl._training.offline import fitting_transitions

from ..agents_under_test import dqn, ppo
from ..toy import Clock, Learner


AGENT, ENV = Learner(), Clock()
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=60)
KEY = jr.key(0)


def assert_in_order(transitions: Any, num_rows: int) -> None:
    """Each row of an environment begins where the last one ended."""
    data = jax.tree.map(np.asarray, transitions)
    assert data.timestep.shape == (2, num_rows)
    goes_on = ~(data.terminated | data.truncated)[:, :-1]
    assert 0 < np.sum(goes_on) < goes_on.size
    np.testing.assert_array_equal(
        data.timestep[:, 1:], np.where(goes_on, data.timestep[:, :-1] + 1, 0)
    )
    np.testing.assert_array_equal(
        data.observation[:, 1:][goes_on], data.next_observation[:, :-1][goes_on]
    )
    # A successor is whole also where the episode ends.
    np.testing.assert_array_equal(data.next_observation[..., 0], data.timestep + 1)


def test_the_rows_of_a_ring_come_oldest_first() -> None:
    solution = eqrl.train(AGENT, ENV, TRAINER, num_steps=40, key=KEY)
    assert_in_order(eqrl.stored_transitions(solution), 20)
    # 42 rows were written to 30 places, so the newest is in the middle.
    solution = eqrl.train(AGENT, ENV, TRAINER, num_steps=44, key=KEY, initial=solution)
    stored = eqrl.stored_transitions(solution)
    assert_in_order(stored, 30)
    actors, last = (
        solution.trainer_state.actors,
        jax.tree.map(lambda x: x[:, -1], stored),
    )
    assert actors is not None
    over = last.terminated | last.truncated
    np.testing.assert_array_equal(
        actors.timestep, jnp.where(over, 0, last.timestep + 1)
    )

    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stored)
    learned = eqrl.train_offline(AGENT, rows, ENV.spec, num_updates=3, key=KEY)
    assert not eqx.tree_equal(learned.state.weight, solution.state.weight)
    # An agent of several steps needs the end of what each environment recorded.
    several = dqn(return_steps=3)
    choices = eqx.tree_at(lambda x: x.action, rows, jnp.zeros(60, int))
    spec = eqrl.EnvSpec(2, action=eqrl.spaces.Discrete(2))
    ends = choices.truncated.at[29::30].set(~choices.terminated[29::30])
    whole = eqx.tree_at(lambda x: x.truncated, choices, ends)
    fitting_transitions(several, whole, spec)


def test_those_of_several_seeds_and_members_are_a_stack() -> None:
    seeds = eqrl.train_seeds(
        AGENT, ENV, TRAINER, num_seeds=2, num_steps=44, key=KEY, members="in_turn"
    )
    stored = eqrl.stored_transitions(seeds)
    for index in range(2):
        of_one = eqrl.member(stored, index)
        assert_in_order(of_one, 22)
        data = eqrl.member(seeds.trainer_state.replay.data, index)
        np.testing.assert_array_equal(of_one.action, data.action[:, :22])
    population = eqrl.PopulationSolution(
        agents=AGENT,
        trainer_states=seeds.trainer_state,
        counts=seeds.counts,
        returns=np.zeros((1, 2, 1)),
        descriptors=None,
        hyperparameters={},
        parents=np.zeros((1, 2), int),
        metrics={},
        scores=np.zeros((1, 2)),
    )
    assert eqx.tree_equal(eqrl.stored_transitions(population), stored)
    failed = jnp.array([False, True])
    broken = eqx.tree_at(lambda x: x.trainer_state.failed, seeds, failed)
    with pytest.raises(ValueError, match=r"members \[1\] diverged"):
        eqrl.stored_transitions(broken)


def test_agents_without_a_replay_have_none() -> None:
    trainer = eqrl.Trainer.on_policy(num_envs=2, num_steps=4)
    state, counts = eqx.filter_eval_shape(trainer.init, ppo(), ENV, key=KEY)
    with pytest.raises(ValueError, match=r"holds no past transitions .*`eqrl.PPO`"):
        eqrl.stored_transitions(eqrl.Solution(state, counts, metrics={}))
