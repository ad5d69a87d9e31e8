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
    equations,
    make_linear_actor,
    make_linear_critic,
)


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


def _restated_update(
    agent: TD3, state: TD3State, batch: Transition[None], key: PRNGKeyArray
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, float]]:
    """The networks and metrics of an update in which the actor moves."""
    critics, targets = fields(state.critics), fields(state.target_critics)
    weight = fields(state.actor)["weight"]
    target_actor = fields(state.target_actor)
    given = restated_batch(batch)

    noise = float(agent.policy_noise) * np.asarray(
        jr.normal(key, (BATCH_SIZE, 2)), float
    )
    noise = np.clip(noise, -float(agent.noise_clip), float(agent.noise_clip))
    next_action = np.tanh(given.next_observation @ target_actor["weight"].T)
    next_action = np.clip(next_action + noise, -1, 1)
    next_value = values(targets, given.next_observation, next_action).min(axis=0)
    critics, critic_loss = critic_step(agent, critics, given, next_value)

    acted = np.tanh(given.observation @ weight.T)
    first = {name: value[:1] for name, value in critics.items()}
    actor_loss = -float(np.mean(values(first, given.observation, acted)))
    by_before = -critics["action_weight"][:1] * (1 - acted**2)
    gradient = by_before.T @ given.observation / BATCH_SIZE
    actor = {"weight": weight - float(agent.actor_lr) * gradient}

    networks = {
        "actor": actor,
        "target_actor": target_step(agent, actor, target_actor),
        "critics": critics,
        "target_critics": target_step(agent, critics, targets),
    }
    return networks, {"actor_loss": actor_loss, "critic_loss": critic_loss}


# The first three share a program.
_AGENTS = {
    "default": _linear(),
    "rewards scaled": _linear(reward_scale=3.0),
    "no noise": _linear(policy_noise=0.0),
    "one critic": _linear(num_critics=1),
    "three critics": _linear(num_critics=3),
}


class TestUpdate:
    @pytest.mark.parametrize("name", list(_AGENTS))
    def test_is_as_restated_in_numpy(self, name: str, getkey: GetKey) -> None:
        # The second of two updates, by which targets have come to differ.
        agent = _AGENTS[name]
        state = init(agent, key=getkey())
        state, _ = _update(agent, state, random_batch(getkey), jnp.array(0), getkey())
        batch, key = random_batch(getkey), getkey()
        after, metrics = _update(agent, state, batch, jnp.array(0), jr.clone(key))
        networks, expected_metrics = _restated_update(agent, state, batch, key)
        check_networks(after, networks)
        check_metrics(metrics, expected_metrics)

    def test_each_part_has_the_optimizer_given_for_it(self, getkey: GetKey) -> None:
        agent = _linear(make_optimizer=(standstill, optax.sgd))
        state = init(agent, key=getkey())
        after, _ = _update(agent, state, random_batch(getkey), jnp.array(0), getkey())
        assert bool(eqx.tree_equal(after.actor, state.actor))
        before: Any = state.critics
        moved: Any = after.critics
        assert np.all(moved.action_weight != before.action_weight)


class TestDelay:
    @pytest.mark.parametrize(
        ("policy_delay", "moving"),
        [(1, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 2, 4, 6]), (3, [0, 3, 6])],
    )
    def test_the_actor_moves_once_a_period_alone(
        self, policy_delay: int, moving: list[int], getkey: GetKey
    ) -> None:
        # And its loss is nan where it does not; the critics move at every update.
        agent = _linear(policy_delay=policy_delay, make_optimizer=optax.adam)
        state = init(agent, key=getkey())
        moved: dict[str, list[int]] = {name: [] for name in vars(state)}
        for step in range(7):
            after, metrics = _update(
                agent, state, random_batch(getkey), jnp.array(step), getkey()
            )
            for name, steps in moved.items():
                if not eqx.tree_equal(getattr(after, name), getattr(state, name)):
                    steps.append(step)
            assert np.isnan(metrics["actor_loss"]) == (step not in moving)
            state = after
        every = list(range(7))
        assert moved == {
            "actor": moving,
            "target_actor": moving,
            "actor_optimizer": moving,
            "critics": every,
            "target_critics": every,
            "critic_optimizer": every,
        }

    def test_it_is_a_branch_also_for_a_population(self) -> None:
        # And one in which next to nothing is done: the gradient is not computed there.
        agent = _linear()
        keys = jax.eval_shape(lambda: jr.split(jr.key(0), 3))
        states = eqx.filter_eval_shape(
            eqx.filter_vmap(lambda key: agent.init(SPEC, key=key)), keys
        )
        batch = jax.eval_shape(lambda: random_batch(lambda: jr.key(0)))
        step = jax.ShapeDtypeStruct((), jnp.int32)

        def update(
            states: TD3State, batch: Transition[None], step: Array, keys: PRNGKeyArray
        ) -> Any:
            return eqx.filter_vmap(
                lambda state, key: agent.update(state, batch, step=step, key=key)
            )(states, keys)

        jaxpr = jax.make_jaxpr(update)(states, batch, step, keys)
        (cond,) = [e for e in equations(jaxpr) if e.primitive.name == "cond"]
        idle, busy = sorted(
            len(list(equations(branch))) for branch in cond.params["branches"]
        )
        assert idle < 5 < busy


def _make_short_actor(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> Any:
    return make_linear_actor(observation_size, action_size - 1, key=key)


_VECTOR_REWARD = EnvSpec(observation_size=3, action_size=2, reward_size=2)

# Options, the environment, and what is said where the two do not fit.
_MISFITS = [
    ({}, _VECTOR_REWARD, "`TD3` learns from a scalar reward"),
    ({"make_actor": _make_short_actor}, SPEC, r"`make_actor`.*\(1,\).*takes \(2,\)"),
]


class TestInit:
    @pytest.mark.parametrize("num_critics", [1, 2, 3])
    def test_critics_are_as_many_as_asked_for_and_all_different(
        self, num_critics: int, getkey: GetKey
    ) -> None:
        state = init(_linear(num_critics=num_critics), key=getkey())
        assert state.critics.action_weight.shape == (num_critics, 2)
        assert len(np.unique(state.critics.bias)) == num_critics

    def test_targets_begin_as_copies(self, getkey: GetKey) -> None:
        # Not jitted, for a compiled function copies what it returns twice.
        state = _linear().init(SPEC, key=getkey())
        for copy, original in (
            (state.target_critics, state.critics),
            (state.target_actor, state.actor),
        ):
            assert bool(eqx.tree_equal(copy, original))
            for x, y in zip(
                jax.tree.leaves(copy), jax.tree.leaves(original), strict=True
            ):
                assert x.unsafe_buffer_pointer() != y.unsafe_buffer_pointer()

    def test_what_does_not_fit_the_environment_is_named(self, getkey: GetKey) -> None:
        for options, spec, message in _MISFITS:
            with pytest.raises(ValueError, match=message):
                _linear(**options).init(spec, key=getkey())


def test_greedy_actions_are_the_actors(getkey: GetKey) -> None:
    agent = _linear(exploration_noise=0.5)
    state = init(agent, key=getkey())
    observation = jnp.array([0.1, -0.2, 0.3])
    greedy, _, _ = agent.act(state, None, observation, mode="greedy", key=getkey())
    np.testing.assert_array_equal(greedy, state.actor(observation))


def test_samples_have_the_exploration_noise(getkey: GetKey) -> None:
    agent = _linear(exploration_noise=0.05)
    state = init(agent, key=getkey())
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
