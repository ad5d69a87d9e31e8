import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import Array, Int, PRNGKeyArray

from eqrl import TD3, EnvSpec, Metrics, TD3State, Transition
from eqrl.nn import Critic, Deterministic
from tests.toy import (
    GetKey,
    equations,
    make_linear_actor,
    make_linear_critic,
    random_transitions,
)


_SPEC = EnvSpec(observation_size=3, action_size=2)
_SIZE = 5


def _linear(**options: Any) -> TD3:
    options = {
        "actor_lr": 0.1,
        "critic_lr": 0.2,
        "discount": 0.9,
        "target_step_size": 0.25,
        "policy_noise": 0.5,
        "noise_clip": 0.4,
        "make_actor": make_linear_actor,
        "make_critic": make_linear_critic,
        "make_optimizer": optax.sgd,
    } | options
    return TD3(**options)


@eqx.filter_jit
def _update(
    agent: TD3,
    state: TD3State,
    batch: Transition[None],
    step: int | Int[Array, ""],
    key: PRNGKeyArray,
) -> tuple[TD3State, Metrics]:
    return agent.update(state, batch, step=jnp.asarray(step), key=key)


def _batch(getkey: GetKey) -> Transition[None]:
    return random_transitions(getkey(), _SIZE, observation_size=3, action_size=2)


def _values(critics: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    return (
        critics["observation_weight"] @ observation.T
        + critics["action_weight"] @ action.T
        + critics["bias"][:, None]
    )


def _fields(module: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(x, np.float64) for name, x in vars(module).items()}


def _restated_update(
    agent: TD3, state: TD3State, batch: Transition[None], key: PRNGKeyArray
) -> dict[str, Any]:
    """An update in which the actor moves, with gradient descent of linear networks."""
    critics, targets = _fields(state.critics), _fields(state.target_critics)
    weight = _fields(state.actor)["weight"]
    target_weight = _fields(state.target_actor)["weight"]
    observation, action, reward, next_observation = (
        np.asarray(x, np.float64)
        for x in (batch.observation, batch.action, batch.reward, batch.next_observation)
    )

    noise = float(agent.policy_noise) * np.asarray(jr.normal(key, (_SIZE, 2)), float)
    noise = np.clip(noise, -float(agent.noise_clip), float(agent.noise_clip))
    next_action = np.clip(np.tanh(next_observation @ target_weight.T) + noise, -1, 1)
    next_value = _values(targets, next_observation, next_action).min(axis=0)
    target = float(agent.reward_scale) * reward
    target += float(agent.discount) * ~np.asarray(batch.terminated) * next_value

    error = _values(critics, observation, action) - target
    rate = float(agent.critic_lr) / error.size
    critics = {
        "observation_weight": critics["observation_weight"]
        - rate * error @ observation,
        "action_weight": critics["action_weight"] - rate * error @ action,
        "bias": critics["bias"] - rate * error.sum(axis=1),
    }

    acted = np.tanh(observation @ weight.T)
    first = {name: value[:1] for name, value in critics.items()}
    actor_loss = -np.mean(_values(first, observation, acted))
    by_before = -critics["action_weight"][:1] * (1 - acted**2)
    weight = weight - float(agent.actor_lr) * by_before.T @ observation / _SIZE

    step_size = float(agent.target_step_size)
    return {
        "actor": {"weight": weight},
        "target_actor": {
            "weight": step_size * weight + (1 - step_size) * target_weight
        },
        "critics": critics,
        "target_critics": {
            name: step_size * critics[name] + (1 - step_size) * targets[name]
            for name in targets
        },
        "metrics": {"actor_loss": actor_loss, "critic_loss": 0.5 * np.mean(error**2)},
    }


_AGENTS = {
    "default": _linear(),
    "one critic": _linear(num_critics=1),
    "three critics": _linear(num_critics=3),
    "rewards scaled": _linear(reward_scale=3.0),
    "no noise": _linear(policy_noise=0.0),
}


class TestUpdate:
    @staticmethod
    def _both(agent: TD3, getkey: GetKey) -> tuple[TD3State, Metrics, dict[str, Any]]:
        # The second of two updates, by which targets have come to differ.
        state = agent.init(_SPEC, key=getkey())
        state, _ = _update(agent, state, _batch(getkey), 0, getkey())
        batch, key = _batch(getkey), getkey()
        after, metrics = _update(agent, state, batch, 0, jr.clone(key))
        return after, metrics, _restated_update(agent, state, batch, key)

    @pytest.mark.parametrize(
        "part", ["actor", "target_actor", "critics", "target_critics"]
    )
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
    def test_metrics_are_as_restated_in_numpy(self, name: str, getkey: GetKey) -> None:
        _, metrics, expected = self._both(_AGENTS[name], getkey)
        assert set(metrics) == set(expected["metrics"])
        for metric, value in expected["metrics"].items():
            np.testing.assert_allclose(metrics[metric], value, rtol=1e-4, atol=1e-5)

    def test_truncation_makes_no_difference(self, getkey: GetKey) -> None:
        agent, batch, key = _linear(), _batch(getkey), getkey()
        state = agent.init(_SPEC, key=getkey())
        cut = eqx.tree_at(lambda b: b.truncated, batch, ~batch.terminated)
        first, second = (
            _update(agent, state, b, 0, jr.clone(key)) for b in (batch, cut)
        )
        assert bool(eqx.tree_equal(first, second))

    def test_each_part_has_the_optimizer_given_for_it(self, getkey: GetKey) -> None:
        agent = _linear(make_optimizer=(_standstill, optax.sgd))
        state = agent.init(_SPEC, key=getkey())
        after, _ = _update(agent, state, _batch(getkey), 0, getkey())
        assert bool(eqx.tree_equal(after.actor, state.actor))
        assert np.all(after.critics.action_weight != state.critics.action_weight)


def _standstill(learning_rate: object) -> optax.GradientTransformation:
    del learning_rate
    return optax.set_to_zero()


class TestDelay:
    @pytest.mark.parametrize(
        ("policy_delay", "moving"),
        [(1, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 2, 4, 6]), (3, [0, 3, 6])],
    )
    @pytest.mark.parametrize("part", ["actor", "target_actor", "actor_optimizer"])
    def test_the_actor_moves_once_a_period_alone(
        self, policy_delay: int, moving: list[int], part: str, getkey: GetKey
    ) -> None:
        agent = _linear(policy_delay=policy_delay, make_optimizer=optax.adam)
        state = agent.init(_SPEC, key=getkey())
        moved = []
        for step in range(7):
            after, _ = _update(agent, state, _batch(getkey), jnp.array(step), getkey())
            if not eqx.tree_equal(getattr(after, part), getattr(state, part)):
                moved.append(step)
            state = after
        assert moved == moving

    @pytest.mark.parametrize("part", ["critics", "target_critics"])
    def test_critics_and_their_targets_move_at_every_update(
        self, part: str, getkey: GetKey
    ) -> None:
        agent = _linear(policy_delay=3)
        state = agent.init(_SPEC, key=getkey())
        for step in range(4):
            after, _ = _update(agent, state, _batch(getkey), jnp.array(step), getkey())
            assert not eqx.tree_equal(getattr(after, part), getattr(state, part))
            state = after

    def test_the_actors_loss_is_nan_where_it_does_not_move(
        self, getkey: GetKey
    ) -> None:
        agent = _linear(policy_delay=2)
        state = agent.init(_SPEC, key=getkey())
        losses = [
            _update(agent, state, _batch(getkey), jnp.array(step), getkey())[1][
                "actor_loss"
            ]
            for step in range(4)
        ]
        np.testing.assert_array_equal(np.isnan(losses), [False, True, False, True])

    def test_it_is_a_branch_also_for_a_population(self, getkey: GetKey) -> None:
        # And one in which next to nothing is done: the gradient is not computed there.
        agent = _linear()
        states = eqx.filter_vmap(lambda key: agent.init(_SPEC, key=key))(
            jr.split(getkey(), 3)
        )
        batch = _batch(getkey)

        def update(states: TD3State, step: Array, keys: PRNGKeyArray) -> Any:
            return eqx.filter_vmap(
                lambda state, key: agent.update(state, batch, step=step, key=key)
            )(states, keys)

        jaxpr = jax.make_jaxpr(update)(states, jnp.array(0), jr.split(getkey(), 3))
        (cond,) = [e for e in equations(jaxpr) if e.primitive.name == "cond"]
        idle, busy = sorted(
            len(list(equations(branch))) for branch in cond.params["branches"]
        )
        assert idle < 5 < busy

    @pytest.mark.parametrize("step", [0, 1])
    def test_members_of_a_population_move_as_each_alone(
        self, step: int, getkey: GetKey
    ) -> None:
        agent, batch = _linear(), _batch(getkey)
        init_keys, keys = jr.split(getkey(), 3), jr.split(getkey(), 3)
        states = eqx.filter_vmap(lambda key: agent.init(_SPEC, key=key))(init_keys)
        together, _ = eqx.filter_vmap(_update, in_axes=(None, 0, None, None, 0))(
            agent, states, batch, jnp.array(step), jr.clone(keys)
        )
        for index in range(3):
            alone, _ = _update(
                agent,
                jax.tree.map(lambda x, index=index: x[index], states),
                batch,
                jnp.array(step),
                keys[index],
            )
            np.testing.assert_allclose(
                together.actor.weight[index],  # pyright: ignore[reportFunctionMemberAccess]
                alone.actor.weight,  # pyright: ignore[reportFunctionMemberAccess]
                rtol=1e-5,
            )


class TestInit:
    @pytest.mark.parametrize("num_critics", [1, 2, 3])
    def test_critics_are_as_many_as_asked_for_and_all_different(
        self, num_critics: int, getkey: GetKey
    ) -> None:
        state = _linear(num_critics=num_critics).init(_SPEC, key=getkey())
        assert state.critics.action_weight.shape == (num_critics, 2)
        assert len(np.unique(state.critics.bias)) == num_critics

    @pytest.mark.parametrize(
        ("target", "of"), [("target_critics", "critics"), ("target_actor", "actor")]
    )
    def test_targets_begin_as_copies(
        self, target: str, of: str, getkey: GetKey
    ) -> None:
        state = _linear().init(_SPEC, key=getkey())
        copy, original = getattr(state, target), getattr(state, of)
        assert bool(eqx.tree_equal(copy, original))
        for x, y in zip(jax.tree.leaves(copy), jax.tree.leaves(original), strict=True):
            assert x.unsafe_buffer_pointer() != y.unsafe_buffer_pointer()

    def test_vector_rewards_are_refused(self, getkey: GetKey) -> None:
        spec = EnvSpec(observation_size=3, action_size=2, reward_size=2)
        with pytest.raises(ValueError, match="`TD3` learns from a scalar reward"):
            _linear().init(spec, key=getkey())

    def test_an_actor_that_does_not_fit_the_action_is_refused(
        self, getkey: GetKey
    ) -> None:
        agent = _linear(make_actor=_make_short_actor)
        with pytest.raises(ValueError, match=r"`make_actor`.*\(1,\).*takes \(2,\)"):
            agent.init(_SPEC, key=getkey())

    @pytest.mark.parametrize(
        "name",
        [
            "actor_lr",
            "critic_lr",
            "discount",
            "target_step_size",
            "exploration_noise",
            "policy_noise",
            "noise_clip",
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

    def test_a_reward_scale_that_is_not_finite_is_named(self) -> None:
        with pytest.raises(ValueError, match="`reward_scale=inf`"):
            TD3(reward_scale=math.inf)

    @pytest.mark.parametrize("name", ["policy_delay", "num_critics"])
    def test_counts_below_one_are_named(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"`{name}=0` must be .*at least 1"):
            _linear(**{name: 0})

    def test_optimizers_for_some_of_the_parts_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"`make_optimizer=.*2, for actor, critic"):
            TD3(make_optimizer=(optax.sgd, optax.sgd, optax.sgd))


def _make_short_actor(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> Any:
    return make_linear_actor(observation_size, action_size - 1, key=key)


def test_greedy_actions_are_the_actors(getkey: GetKey) -> None:
    agent = _linear(exploration_noise=0.5)
    state = agent.init(_SPEC, key=getkey())
    observation = jnp.array([0.1, -0.2, 0.3])
    greedy, _, _ = agent.act(state, None, observation, mode="greedy", key=getkey())
    np.testing.assert_array_equal(greedy, state.actor(observation))


def test_samples_have_the_exploration_noise(getkey: GetKey) -> None:
    agent = _linear(exploration_noise=0.05)
    state = agent.init(_SPEC, key=getkey())
    observation = jnp.array([0.01, -0.02, 0.03])
    samples = jax.vmap(
        lambda key: agent.act(state, None, observation, mode="sample", key=key)[0]
    )(jr.split(getkey(), 4_000))
    np.testing.assert_allclose(
        np.mean(samples, axis=0), state.actor(observation), atol=0.005
    )
    np.testing.assert_allclose(np.std(samples, axis=0), [0.05, 0.05], rtol=0.06)


def test_default_networks_are_two_layers_of_256() -> None:
    assert TD3().make_actor == Deterministic((256, 256))
    assert TD3().make_critic == Critic((256, 256))
