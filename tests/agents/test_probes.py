"""Agents learn what is known: environments whose values were worked out by hand."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl
from eqrl._agents.base import AnyAgent
from eqrl.losses import action_values, critic_values
from eqrl.spaces import Discrete

from ..agents_under_test import discrete_sac, dqn, ppo, pqn, sac, space_of, td3
from ..probe import Probe


DISCOUNT = 0.9
NUM_STEPS = 8_000

# These learn quickly.
FAST: dict[str, Any] = {
    "hidden_sizes": (32, 32),
    "actor_lr": 3e-3,
    "critic_lr": 3e-3,
    "discount": DISCOUNT,
    "target_step_size": 0.05,
}
ON_POLICY: dict[str, Any] = {
    "hidden_sizes": (32, 32),
    "lr": 3e-3,
    "discount": DISCOUNT,
    "entropy_weight": 0.0,
    "num_epochs": 4,
    "anneal_steps": float(NUM_STEPS),
}
LEARNERS: dict[str, Any] = {
    "SAC": sac(initial_temperature=1e-3, learn_temperature=False, **FAST),
    "TD3": td3(exploration_noise=0.3, **FAST),
    "Normalized(TD3)": eqrl.Normalized(td3(exploration_noise=0.3, **FAST)),
    "DiscreteSAC": discrete_sac(
        initial_temperature=1e-2, learn_temperature=False, **FAST
    ),
    "DQN": dqn(
        hidden_sizes=(32, 32),
        lr=3e-3,
        discount=DISCOUNT,
        target_step_size=0.05,
        target_period=1,
        epsilon_steps=NUM_STEPS / 2,
    ),
    "PPO": ppo(**ON_POLICY),
    "PPO-discrete": ppo(discrete=True, **ON_POLICY),
    "PQN": pqn(
        hidden_sizes=(32, 32),
        lr=3e-3,
        discount=DISCOUNT,
        epsilon_steps=NUM_STEPS / 2,
        num_minibatches=4,
        # At a constant rate rounding drives what was learned off again.
        anneal_steps=float(NUM_STEPS),
    ),
}
ROLLOUTS = eqrl.Trainer.on_policy(num_envs=4, num_steps=20)
TRAINER = eqrl.Trainer(num_envs=4, batch_size=32, warmup_steps=256, capacity=10_000)


PROBES = {
    "constant": Probe(constant=1.0),
    "by sign": Probe(sign_weight=1.0),
    "later": Probe(length=3.0, last_weight=1.0),
    "best action": Probe(action_weight=1.0, best_action=0.5),
    "best action by sign": Probe(action_weight=1.0, best_action_by_sign=0.5),
    "terminating": Probe(length=2.0, constant=1.0),
    # Nothing tells the state behind the limit from the others.
    "truncated": Probe(length=3.0, terminates=0.0, constant=1.0, time_weight=0.0),
}


# The reward is a sign that the actor does not see; the first one shows it to critics.
HIDDEN = [Probe(2.0, sign_weight=1.0, shown=0.0, critic_shown=x) for x in (1.0, 0.0)]


@eqx.filter_jit
def learn(agent: AnyAgent, probes: Probe, keys: PRNGKeyArray) -> Any:
    """A stack of states, one trained in each of a stack of probes."""

    def learn_one(probe: Probe, key: PRNGKeyArray) -> Any:
        init_key, run_key = jr.split(key)
        trainer = ROLLOUTS if agent.sequence_length is None else TRAINER
        state, counts = trainer.init(agent, probe, key=init_key)
        state, _, _ = trainer.run(
            agent, probe, state, counts, num_steps=NUM_STEPS, key=run_key
        )
        return state.agent

    return eqx.filter_vmap(learn_one)(probes, keys)


class Learner(eqx.Module):
    """An agent, and what it learned in each probe."""

    agent: Any
    states: dict[str, Any]
    probe: Probe = Probe()

    def number(self, probe: str, observation: list[float]) -> float:
        """What the agent would do at `observation`, as a number."""
        return float(self.probe.number_of(self.greedy(probe, observation)))

    def greedy(self, probe: str, observation: list[float]) -> Array:
        action, _, _ = self.agent.act(
            self.states[probe],
            None,
            jnp.asarray(observation),
            mode="greedy",
            key=jr.key(0),
        )
        return action

    def value(
        self, probe: str, observation: list[float], seen_by_critics: Any = None
    ) -> float:
        """The mean value of what the agent would do at `observation`."""
        action = self.greedy(probe, observation)
        state, seen = self.states[probe], jnp.asarray(seen_by_critics or observation)
        if isinstance(self.agent, eqrl.Normalized):
            seen, state = state.statistics.normalize(seen), state.agent
        if isinstance(self.agent, eqrl.PPO):
            return float(state.critic(seen))
        if isinstance(self.agent, (eqrl.DQN, eqrl.PQN)):
            return float(state.network(seen)[action])
        if isinstance(self.agent, eqrl.DiscreteSAC):
            values = action_values(state.critics, seen[None])
            return float(jnp.mean(values[:, 0, action]))
        return float(jnp.mean(critic_values(state.critics, seen[None], action[None])))


@pytest.fixture(
    scope="module",
    params=[
        "PPO",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in sorted(LEARNERS.keys() - {"PPO"})
        ),
    ],
)
def learner(request: pytest.FixtureRequest) -> Learner:
    agent = LEARNERS[request.param]
    # Among them are -0.5 and 0.5.
    num_choices = 5 if isinstance(space_of(agent), Discrete) else None
    each = [dataclasses.replace(x, num_choices=num_choices) for x in PROBES.values()]
    probes = jax.tree.map(lambda *x: jnp.stack(x), *each)
    states = learn(agent, probes, jr.split(jr.key(0), len(PROBES)))
    return Learner(
        agent=agent,
        probe=each[0],
        states={
            name: jax.tree.map(lambda x, i=index: x[i], states)
            for index, name in enumerate(PROBES)
        },
    )


def test_a_constant_reward_is_valued_at_itself(learner: Learner) -> None:
    assert learner.value("constant", [1.0, 0.0]) == pytest.approx(1.0, abs=0.05)


def test_what_is_observed_decides_the_value(learner: Learner) -> None:
    values = [learner.value("by sign", [sign, 0.0]) for sign in (-1.0, 1.0)]
    assert values == pytest.approx([-1.0, 1.0], abs=0.1)


def test_a_later_reward_is_discounted(learner: Learner) -> None:
    values = [learner.value("later", [1.0, time]) for time in (0.0, 1.0, 2.0)]
    assert values == pytest.approx([DISCOUNT**2, DISCOUNT, 1.0], abs=0.1)


def test_the_best_action_is_found(learner: Learner) -> None:
    assert learner.number("best action", [1.0, 0.0]) == pytest.approx(0.5, abs=0.1)


def test_the_best_action_follows_the_observation(learner: Learner) -> None:
    actions = [
        learner.number("best action by sign", [sign, 0.0]) for sign in (-1.0, 1.0)
    ]
    assert actions == pytest.approx([-0.5, 0.5], abs=0.1)


def test_termination_ends_the_value(learner: Learner) -> None:
    values = [learner.value("terminating", [1.0, time]) for time in (0.0, 1.0)]
    assert values == pytest.approx([1 + DISCOUNT, 1.0], abs=0.1)


def test_truncation_does_not_end_the_value(learner: Learner) -> None:
    # All states are worth the same: constant / (1 - discount).
    expected = 1 / (1 - DISCOUNT)
    assert learner.value("truncated", [1.0, 0.0]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    "name",
    ["PPO", *(pytest.param(name, marks=pytest.mark.long) for name in ("SAC", "TD3"))],
)
def test_a_critic_sees_what_its_actor_does_not(name: str) -> None:
    agent = LEARNERS[name]
    probes = jax.tree.map(lambda *x: jnp.stack(x), *HIDDEN)
    states = learn(agent, probes, jr.split(jr.key(0), len(HIDDEN)))
    errors = []
    for index, shown in enumerate((1.0, 0.0)):
        learner = Learner(agent, {"": jax.tree.map(lambda x, i=index: x[i], states)})
        of_probe = [
            learner.value("", [0.0, time], [shown * sign, time, 0.0])
            - sign * (1 + DISCOUNT * (1 - time))
            for sign in (-1.0, 1.0)
            for time in (0.0, 1.0)
        ]
        errors.append(np.abs(of_probe))
    assert np.max(errors[0]) < 0.1 and np.min(errors[1]) > 0.5
