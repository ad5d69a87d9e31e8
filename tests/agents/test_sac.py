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
from tests.toy import (
    GetKey,
    LinearCritic,
    make_linear_critic,
    make_linear_gaussian,
    random_transitions,
)


_SPEC = EnvSpec(observation_size=3, action_size=2)
_SIZE = 5


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


def _batch(getkey: GetKey) -> Transition[None]:
    return random_transitions(getkey(), _SIZE, observation_size=3, action_size=2)


def _noise(key: PRNGKeyArray) -> np.ndarray:
    """What the actor draws for a batch with this key."""
    return np.asarray(
        jax.vmap(lambda key: jr.normal(key, (2,)))(jr.split(key, _SIZE)), np.float64
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


def _values(critics: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    return (
        critics["observation_weight"] @ observation.T
        + critics["action_weight"] @ action.T
        + critics["bias"][:, None]
    )


def _fields(module: eqx.Module) -> dict[str, np.ndarray]:
    return {name: np.asarray(x, np.float64) for name, x in vars(module).items()}


def _restated_update(
    agent: SAC, state: SACState, batch: Transition[None], key: PRNGKeyArray
) -> dict[str, Any]:
    """One update with gradient descent of linear networks, in double precision."""
    actor = _fields(state.actor)  # pyright: ignore[reportArgumentType]
    critics, targets = _fields(state.critics), _fields(state.target_critics)
    observation, action, reward, next_observation = (
        np.asarray(x, np.float64)
        for x in (batch.observation, batch.action, batch.reward, batch.next_observation)
    )
    temperature = math.exp(float(state.log_temperature))
    next_key, actor_key = jr.split(key)

    following = _act(
        actor["weight"], actor["log_scale"], next_observation, _noise(next_key)
    )
    next_value = _values(targets, next_observation, following.action).min(axis=0)
    next_value -= temperature * following.log_prob
    alive = ~np.asarray(batch.terminated)
    target = float(agent.reward_scale) * reward
    target += float(agent.discount) * alive * next_value

    error = _values(critics, observation, action) - target
    critic_loss = 0.5 * np.mean(error**2)
    rate = float(agent.critic_lr) / error.size
    critics = {
        "observation_weight": critics["observation_weight"]
        - rate * error @ observation,
        "action_weight": critics["action_weight"] - rate * error @ action,
        "bias": critics["bias"] - rate * error.sum(axis=1),
    }

    acted = _act(actor["weight"], actor["log_scale"], observation, _noise(actor_key))
    values = _values(critics, observation, acted.action)
    actor_loss = np.mean(temperature * acted.log_prob - values.min(axis=0))
    slope = critics["action_weight"][values.argmin(axis=0)]
    # d log_prob / du = 2 tanh(u), with u the value before tanh, and dQ/du by the chain.
    by_before = 2 * temperature * acted.action - slope * (1 - acted.action**2)
    weight_gradient = by_before.T @ observation / _SIZE
    scale_gradient = np.mean(by_before * acted.scaled_noise - temperature, axis=0)

    entropy = -np.mean(acted.log_prob)
    target_entropy = (
        -2.0 if agent.target_entropy is None else float(agent.target_entropy)
    )
    temperature_loss = temperature * (entropy - target_entropy)
    step_size = float(agent.target_step_size)
    return {
        "actor": {
            "weight": actor["weight"] - float(agent.actor_lr) * weight_gradient,
            "log_scale": actor["log_scale"] - float(agent.actor_lr) * scale_gradient,
        },
        "critics": critics,
        "target_critics": {
            name: step_size * critics[name] + (1 - step_size) * targets[name]
            for name in targets
        },
        "log_temperature": float(state.log_temperature)
        - float(agent.temperature_lr) * temperature_loss,
        "metrics": {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "temperature_loss": temperature_loss,
            "temperature": temperature,
            "entropy": entropy,
        },
    }


_AGENTS = {
    "default": _linear(),
    "one critic": _linear(num_critics=1),
    "three critics": _linear(num_critics=3),
    "rewards scaled": _linear(reward_scale=3.0),
    "target entropy given": _linear(target_entropy=-0.7),
}


class TestUpdate:
    @staticmethod
    def _both(agent: SAC, getkey: GetKey) -> tuple[SACState, Metrics, dict[str, Any]]:
        # The second of two updates, by which critics and targets have come to differ.
        state = agent.init(_SPEC, key=getkey())
        state, _ = _update(agent, state, _batch(getkey), getkey())
        batch, key = _batch(getkey), getkey()
        after, metrics = _update(agent, state, batch, jr.clone(key))
        return after, metrics, _restated_update(agent, state, batch, key)

    @pytest.mark.parametrize("part", ["actor", "critics", "target_critics"])
    @pytest.mark.parametrize("name", list(_AGENTS))
    def test_networks_move_as_restated_in_numpy(
        self, name: str, part: str, getkey: GetKey
    ) -> None:
        state, _, expected = self._both(_AGENTS[name], getkey)
        for field, value in expected[part].items():
            np.testing.assert_allclose(
                getattr(getattr(state, part), field), value, rtol=1e-4, atol=1e-4
            )

    @pytest.mark.parametrize("name", list(_AGENTS))
    def test_temperature_moves_as_restated_in_numpy(
        self, name: str, getkey: GetKey
    ) -> None:
        state, _, expected = self._both(_AGENTS[name], getkey)
        np.testing.assert_allclose(
            state.log_temperature, expected["log_temperature"], rtol=1e-4, atol=1e-5
        )

    @pytest.mark.parametrize("name", list(_AGENTS))
    def test_metrics_are_as_restated_in_numpy(self, name: str, getkey: GetKey) -> None:
        _, metrics, expected = self._both(_AGENTS[name], getkey)
        assert set(metrics) == set(expected["metrics"])
        for metric, value in expected["metrics"].items():
            np.testing.assert_allclose(metrics[metric], value, rtol=1e-4, atol=1e-5)

    def test_default_target_entropy_is_minus_the_actions_size(
        self, getkey: GetKey
    ) -> None:
        state_key, key, batch = getkey(), getkey(), _batch(getkey)
        losses = []
        for agent in (_linear(), _linear(target_entropy=-2.0)):
            state = agent.init(_SPEC, key=jr.clone(state_key))
            _, metrics = _update(agent, state, batch, jr.clone(key))
            losses.append(metrics["temperature_loss"])
        np.testing.assert_array_equal(losses[0], losses[1])

    def test_fixed_temperature_stays(self, getkey: GetKey) -> None:
        agent = _linear(learn_temperature=False)
        state = agent.init(_SPEC, key=getkey())
        after, metrics = _update(agent, state, _batch(getkey), getkey())
        np.testing.assert_array_equal(after.log_temperature, state.log_temperature)
        np.testing.assert_allclose(metrics["temperature"], 0.5, rtol=1e-6)

    def test_truncation_makes_no_difference(self, getkey: GetKey) -> None:
        agent, batch, key = _linear(), _batch(getkey), getkey()
        state = agent.init(_SPEC, key=getkey())
        cut = eqx.tree_at(lambda b: b.truncated, batch, ~batch.terminated)
        first, second = (_update(agent, state, b, jr.clone(key)) for b in (batch, cut))
        assert bool(eqx.tree_equal(first, second))

    def test_what_is_next_makes_no_difference_where_terminated(
        self, getkey: GetKey
    ) -> None:
        agent, batch, key = _linear(), _batch(getkey), getkey()
        batch = eqx.tree_at(lambda b: b.terminated, batch, jnp.ones(_SIZE, bool))
        state = agent.init(_SPEC, key=getkey())
        other = eqx.tree_at(
            lambda b: b.next_observation, batch, batch.next_observation + 5
        )
        first, second = (
            _update(agent, state, b, jr.clone(key)) for b in (batch, other)
        )
        assert bool(eqx.tree_equal(first, second))

    def test_each_part_has_the_optimizer_given_for_it(self, getkey: GetKey) -> None:
        # Only the second, of the critics, moves anything.
        agent = _linear(make_optimizer=(_standstill, optax.sgd, _standstill))
        state = agent.init(_SPEC, key=getkey())
        after, _ = _update(agent, state, _batch(getkey), getkey())
        assert bool(eqx.tree_equal(after.actor, state.actor))
        assert bool(eqx.tree_equal(after.log_temperature, state.log_temperature))
        assert np.all(after.critics.action_weight != state.critics.action_weight)

    @pytest.mark.parametrize("part", ["actor", "critic", "temperature"])
    def test_each_part_has_a_rate_of_its_own(self, part: str, getkey: GetKey) -> None:
        rates = {"actor_lr": 0.0, "critic_lr": 0.0, "temperature_lr": 0.0}
        agent = _linear(**(rates | {f"{part}_lr": 0.1}))
        state = agent.init(_SPEC, key=getkey())
        after, _ = _update(agent, state, _batch(getkey), getkey())
        moved = {
            "actor": not eqx.tree_equal(after.actor, state.actor),
            "critic": not eqx.tree_equal(after.critics, state.critics),
            "temperature": not eqx.tree_equal(
                after.log_temperature, state.log_temperature
            ),
        }
        assert moved == {name: name == part for name in moved}


def _standstill(learning_rate: object) -> optax.GradientTransformation:
    del learning_rate
    return optax.set_to_zero()


class TestInit:
    @pytest.mark.parametrize("num_critics", [1, 2, 3])
    def test_critics_are_as_many_as_asked_for_and_all_different(
        self, num_critics: int, getkey: GetKey
    ) -> None:
        state = _linear(num_critics=num_critics).init(_SPEC, key=getkey())
        assert state.critics.action_weight.shape == (num_critics, 2)
        assert len(np.unique(state.critics.bias)) == num_critics

    def test_targets_begin_as_copies_of_the_critics(self, getkey: GetKey) -> None:
        state = _linear().init(_SPEC, key=getkey())
        assert bool(eqx.tree_equal(state.target_critics, state.critics))
        assert (
            state.target_critics.bias.unsafe_buffer_pointer()
            != state.critics.bias.unsafe_buffer_pointer()
        )

    def test_temperature_begins_as_asked_for(self, getkey: GetKey) -> None:
        state = _linear(initial_temperature=0.25).init(_SPEC, key=getkey())
        np.testing.assert_allclose(np.exp(state.log_temperature), 0.25, rtol=1e-6)

    def test_vector_rewards_are_refused(self, getkey: GetKey) -> None:
        spec = EnvSpec(observation_size=3, action_size=2, reward_size=2)
        with pytest.raises(ValueError, match="`SAC` learns from a scalar reward"):
            _linear().init(spec, key=getkey())

    def test_an_actor_that_does_not_fit_the_action_is_refused(
        self, getkey: GetKey
    ) -> None:
        agent = _linear(make_actor=_make_short_actor)
        with pytest.raises(ValueError, match=r"`make_actor`.*\(1,\).*takes \(2,\)"):
            agent.init(_SPEC, key=getkey())

    def test_a_critic_whose_value_is_no_scalar_is_refused(self, getkey: GetKey) -> None:
        agent = _linear(make_critic=_make_vector_critic)
        with pytest.raises(ValueError, match=r"`make_critic`.*\(1,\).*scalar"):
            agent.init(_SPEC, key=getkey())

    @pytest.mark.parametrize(
        "name",
        [
            "actor_lr",
            "critic_lr",
            "temperature_lr",
            "target_step_size",
            "discount",
            "initial_temperature",
        ],
    )
    def test_values_below_their_range_are_named(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"`{name}=-0.1` is out of range"):
            _linear(**{name: -0.1})

    @pytest.mark.parametrize("name", ["target_step_size", "discount"])
    def test_values_above_their_range_are_named(self, name: str) -> None:
        with pytest.raises(
            ValueError, match=rf"`{name}=1.1` is out of range.*\[0, 1\]"
        ):
            _linear(**{name: 1.1})

    @pytest.mark.parametrize("name", ["reward_scale", "target_entropy", "actor_lr"])
    def test_values_that_are_not_finite_are_named(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"`{name}=nan`"):
            _linear(**{name: math.nan})

    def test_an_initial_temperature_of_zero_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"`initial_temperature=0`.*\(0, inf\)"):
            SAC(initial_temperature=0.0)

    def test_no_critics_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"`num_critics=0` must be .*at least 1"):
            SAC(num_critics=0)

    def test_optimizers_for_some_of_the_parts_are_refused(self) -> None:
        with pytest.raises(
            ValueError, match=r"`make_optimizer=.*3, for actor, critic, temperature"
        ):
            SAC(make_optimizer=(optax.sgd, optax.sgd))


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


def test_actions_are_those_of_the_actor(getkey: GetKey) -> None:
    agent = _linear()
    state = agent.init(_SPEC, key=getkey())
    observation, key = jnp.array([0.1, -0.2, 0.3]), getkey()
    distribution = state.actor(observation)
    greedy, _, _ = agent.act(state, None, observation, mode="greedy", key=jr.clone(key))
    sample, _, _ = agent.act(state, None, observation, mode="sample", key=jr.clone(key))
    np.testing.assert_array_equal(greedy, distribution.mode())
    np.testing.assert_array_equal(sample, distribution.sample(key=key))


def test_random_actions_are_uniform_in_the_box(getkey: GetKey) -> None:
    agent = _linear()
    state = agent.init(_SPEC, key=getkey())
    actions = jax.vmap(
        lambda key: agent.act(state, None, jnp.ones(3), mode="random", key=key)[0]
    )(jr.split(getkey(), 4_000))
    hits, _ = np.histogram(actions, bins=8, range=(-1, 1))
    assert hits.sum() == actions.size
    np.testing.assert_allclose(hits, actions.size / 8, rtol=0.12)


def test_default_networks_are_two_layers_of_256() -> None:
    assert SAC().make_actor == Gaussian((256, 256))
    assert SAC().make_critic == Critic((256, 256))
