import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import Array, PRNGKeyArray

from eqrl import SAC, EnvSpec, Metrics, SACState, Transition
from eqrl.nn import Critic, Gaussian
from tests.restated import (
    BATCH_SIZE,
    SPEC,
    check_metrics,
    check_networks,
    critic_step,
    fields,
    init,
    random_batch,
    restated_batch,
    standstill,
    target_step,
    values,
)
from tests.toy import (
    GetKey,
    LinearCritic,
    make_linear_critic,
    make_linear_gaussian,
)


def _linear(**options: Any) -> SAC:
    options = {
        "actor_lr": 0.1,
        "critic_lr": 0.2,
        "temperature_lr": 0.3,
        "discount": 0.9,
        "target_step_size": 0.25,
        "initial_temperature": 0.5,
        "make_actor": make_linear_gaussian,
        "make_critic": make_linear_critic,
        "make_optimizer": optax.sgd,
    } | options
    return SAC(**options)


@eqx.filter_jit
def _update(
    agent: SAC, state: SACState, batch: Transition[None], key: PRNGKeyArray
) -> tuple[SACState, Metrics]:
    return agent.update(state, batch, step=jnp.array(0), key=key)


def _noise(key: PRNGKeyArray) -> np.ndarray:
    """What the actor draws for a batch with this key."""
    return np.asarray(
        jax.vmap(lambda key: jr.normal(key, (2,)))(jr.split(key, BATCH_SIZE)),
        np.float64,
    )


class _Actions(NamedTuple):
    """Actions of a linear tanh-normal, and what its gradients need."""

    action: np.ndarray
    log_prob: np.ndarray
    scaled_noise: np.ndarray


def _act(
    weight: np.ndarray,
    log_scale: np.ndarray,
    observation: np.ndarray,
    noise: np.ndarray,
) -> _Actions:
    scaled_noise = np.exp(log_scale) * noise
    action = np.tanh(observation @ weight.T + scaled_noise)
    log_normal = -0.5 * noise**2 - 0.5 * math.log(2 * math.pi) - log_scale
    log_prob = np.sum(log_normal - np.log(1 - action**2), axis=1)
    return _Actions(action, log_prob, scaled_noise)


class _Expected(NamedTuple):
    """What an update is to give."""

    networks: dict[str, dict[str, np.ndarray]]
    log_temperature: float
    metrics: dict[str, float]


def _restated_update(
    agent: SAC, state: SACState, batch: Transition[None], key: PRNGKeyArray
) -> _Expected:
    """One update with gradient descent of linear networks, in double precision."""
    actor, critics, targets = map(
        fields, (state.actor, state.critics, state.target_critics)
    )
    given = restated_batch(batch)
    temperature = math.exp(float(state.log_temperature))
    next_key, actor_key = jr.split(key)

    following = _act(
        actor["weight"], actor["log_scale"], given.next_observation, _noise(next_key)
    )
    next_value = values(targets, given.next_observation, following.action).min(axis=0)
    next_value -= temperature * following.log_prob
    critics, critic_loss = critic_step(agent, critics, given, next_value)

    acted = _act(
        actor["weight"], actor["log_scale"], given.observation, _noise(actor_key)
    )
    by_critic = values(critics, given.observation, acted.action)
    actor_loss = float(np.mean(temperature * acted.log_prob - by_critic.min(axis=0)))
    slope = critics["action_weight"][by_critic.argmin(axis=0)]
    # d log_prob / du = 2 tanh(u), with u the value before tanh, and dQ/du by the chain.
    by_before = 2 * temperature * acted.action - slope * (1 - acted.action**2)
    weight_gradient = by_before.T @ given.observation / BATCH_SIZE
    scale_gradient = np.mean(by_before * acted.scaled_noise - temperature, axis=0)

    entropy = -float(np.mean(acted.log_prob))
    target_entropy = (
        -2.0 if agent.target_entropy is None else float(agent.target_entropy)
    )
    temperature_loss = temperature * (entropy - target_entropy)
    return _Expected(
        networks={
            "actor": {
                "weight": actor["weight"] - float(agent.actor_lr) * weight_gradient,
                "log_scale": actor["log_scale"]
                - float(agent.actor_lr) * scale_gradient,
            },
            "critics": critics,
            "target_critics": target_step(agent, critics, targets),
        },
        log_temperature=float(state.log_temperature)
        - float(agent.temperature_lr) * temperature_loss,
        metrics={
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "temperature_loss": temperature_loss,
            "temperature": temperature,
            "entropy": entropy,
        },
    )


# The first two share a program.
_AGENTS = {
    "default": _linear(),
    "rewards scaled": _linear(reward_scale=3.0),
    "one critic": _linear(num_critics=1),
    "three critics, target entropy given": _linear(num_critics=3, target_entropy=-0.7),
}


class TestUpdate:
    @pytest.mark.parametrize("name", list(_AGENTS))
    def test_is_as_restated_in_numpy(self, name: str, getkey: GetKey) -> None:
        # The second of two updates, by which critics and targets have come to differ.
        agent = _AGENTS[name]
        state = init(agent, key=getkey())
        state, _ = _update(agent, state, random_batch(getkey), getkey())
        batch, key = random_batch(getkey), getkey()
        after, metrics = _update(agent, state, batch, jr.clone(key))
        expected = _restated_update(agent, state, batch, key)
        check_networks(after, expected.networks)
        np.testing.assert_allclose(
            after.log_temperature, expected.log_temperature, rtol=1e-4, atol=1e-5
        )
        check_metrics(metrics, expected.metrics)

    def test_fixed_temperature_stays(self, getkey: GetKey) -> None:
        agent = _linear(learn_temperature=False)
        state = init(agent, key=getkey())
        after, metrics = _update(agent, state, random_batch(getkey), getkey())
        np.testing.assert_array_equal(after.log_temperature, state.log_temperature)
        np.testing.assert_allclose(metrics["temperature"], 0.5, rtol=1e-6)

    def test_fixed_temperature_is_the_agents_at_each_update(
        self, getkey: GetKey
    ) -> None:
        # As population based training changes it, long after `init`.
        agent = _linear(learn_temperature=False, initial_temperature=2.0)
        begun = _linear(learn_temperature=False)
        batch, key = random_batch(getkey), getkey()
        state = init(begun, key=getkey())
        after, metrics = _update(agent, state, batch, jr.clone(key))
        np.testing.assert_allclose(metrics["temperature"], 2.0, rtol=1e-6)
        np.testing.assert_allclose(after.log_temperature, math.log(2), rtol=1e-6)
        _, before = _update(begun, state, batch, key)
        assert metrics["critic_loss"] != before["critic_loss"]
        assert metrics["actor_loss"] != before["actor_loss"]

    def test_truncation_makes_no_difference(self, getkey: GetKey) -> None:
        agent, batch, key = _linear(), random_batch(getkey), getkey()
        state = init(agent, key=getkey())
        cut = eqx.tree_at(lambda b: b.truncated, batch, ~batch.terminated)
        first, second = (_update(agent, state, b, jr.clone(key)) for b in (batch, cut))
        assert bool(eqx.tree_equal(first, second))

    def test_what_is_next_makes_no_difference_where_terminated(
        self, getkey: GetKey
    ) -> None:
        agent, batch, key = _linear(), random_batch(getkey), getkey()
        batch = eqx.tree_at(lambda b: b.terminated, batch, jnp.ones(BATCH_SIZE, bool))
        state = init(agent, key=getkey())
        other = eqx.tree_at(
            lambda b: b.next_observation, batch, batch.next_observation + 5
        )
        first, second = (
            _update(agent, state, b, jr.clone(key)) for b in (batch, other)
        )
        assert bool(eqx.tree_equal(first, second))

    def test_each_part_has_the_optimizer_given_for_it(self, getkey: GetKey) -> None:
        # Only the second, of the critics, moves anything.
        agent = _linear(make_optimizer=(standstill, optax.sgd, standstill))
        state = init(agent, key=getkey())
        after, _ = _update(agent, state, random_batch(getkey), getkey())
        assert bool(eqx.tree_equal(after.actor, state.actor))
        assert bool(eqx.tree_equal(after.log_temperature, state.log_temperature))
        before: Any = state.critics
        moved: Any = after.critics
        assert np.all(moved.action_weight != before.action_weight)

    @pytest.mark.parametrize("part", ["actor", "critic", "temperature"])
    def test_each_part_has_a_rate_of_its_own(self, part: str, getkey: GetKey) -> None:
        rates = {"actor_lr": 0.0, "critic_lr": 0.0, "temperature_lr": 0.0}
        agent = _linear(**(rates | {f"{part}_lr": 0.1}))
        state = init(agent, key=getkey())
        after, _ = _update(agent, state, random_batch(getkey), getkey())
        moved = {
            "actor": not eqx.tree_equal(after.actor, state.actor),
            "critic": not eqx.tree_equal(after.critics, state.critics),
            "temperature": not eqx.tree_equal(
                after.log_temperature, state.log_temperature
            ),
        }
        assert moved == {name: name == part for name in moved}


def _make_short_actor(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> Any:
    return make_linear_gaussian(observation_size, action_size - 1, key=key)


class _VectorCritic(eqx.Module):
    critic: LinearCritic

    def __call__(self, observation: Array, action: Array) -> Array:
        return self.critic(observation, action)[None]


def _make_vector_critic(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> _VectorCritic:
    return _VectorCritic(make_linear_critic(observation_size, action_size, key=key))


_VECTOR_REWARD = EnvSpec(observation_size=3, action_size=2, reward_size=2)

# Options, the environment, and what is said where the two do not fit.
_MISFITS = [
    ({}, _VECTOR_REWARD, "`SAC` learns from a scalar reward"),
    ({"make_actor": _make_short_actor}, SPEC, r"`make_actor`.*\(1,\).*takes \(2,\)"),
    ({"make_critic": _make_vector_critic}, SPEC, r"`make_critic`.*\(1,\).*scalar"),
    (
        {"make_critic": lambda *sizes, key: lambda both: jnp.sum(both)},
        SPEC,
        r"cannot be called as `make_critic\(\.\.\.\)\(observation, action\)`",
    ),
    ({"target_entropy": 2.0}, SPEC, "`target_entropy=2` is more than 1.39"),
]


class TestInit:
    @pytest.mark.parametrize("num_critics", [1, 2, 3])
    def test_critics_are_as_many_as_asked_for_and_all_different(
        self, num_critics: int, getkey: GetKey
    ) -> None:
        state = init(_linear(num_critics=num_critics), key=getkey())
        assert state.critics.action_weight.shape == (num_critics, 2)
        assert len(np.unique(state.critics.bias)) == num_critics

    def test_targets_begin_as_copies_of_the_critics(self, getkey: GetKey) -> None:
        # Not jitted, for a compiled function copies what it returns twice.
        state = _linear().init(SPEC, key=getkey())
        assert bool(eqx.tree_equal(state.target_critics, state.critics))
        critics: Any = state.critics
        targets: Any = state.target_critics
        assert (
            targets.bias.unsafe_buffer_pointer() != critics.bias.unsafe_buffer_pointer()
        )

    def test_temperature_begins_as_asked_for(self, getkey: GetKey) -> None:
        state = init(_linear(initial_temperature=0.25), key=getkey())
        np.testing.assert_allclose(np.exp(state.log_temperature), 0.25, rtol=1e-6)

    def test_what_does_not_fit_the_environment_is_named(self, getkey: GetKey) -> None:
        for options, spec, message in _MISFITS:
            with pytest.raises(ValueError, match=message):
                _linear(**options).init(spec, key=getkey())


def test_actions_are_those_of_the_actor(getkey: GetKey) -> None:
    agent = _linear()
    state = init(agent, key=getkey())
    observation, key = jnp.array([0.1, -0.2, 0.3]), getkey()
    distribution = state.actor(observation)
    greedy, _, _ = agent.act(state, None, observation, mode="greedy", key=jr.clone(key))
    sample, _, _ = agent.act(state, None, observation, mode="sample", key=jr.clone(key))
    np.testing.assert_array_equal(greedy, distribution.mode())
    np.testing.assert_array_equal(sample, distribution.sample(key=key))


def test_random_actions_are_uniform_in_the_box(getkey: GetKey) -> None:
    agent = _linear()
    state = init(agent, key=getkey())
    actions = jax.vmap(
        lambda key: agent.act(state, None, jnp.ones(3), mode="random", key=key)[0]
    )(jr.split(getkey(), 4_000))
    hits, _ = np.histogram(actions, bins=8, range=(-1, 1))
    assert hits.sum() == actions.size
    np.testing.assert_allclose(hits, actions.size / 8, rtol=0.12)


def test_default_networks_are_two_layers_of_256() -> None:
    assert SAC().make_actor == Gaussian((256, 256))
    assert SAC().make_critic == Critic((256, 256))
