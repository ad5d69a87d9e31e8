"""SAC and TD3, whose updates are restated in NumPy for linear networks.

All in double precision, with gradient descent. Critics are dictionaries of the arrays
of a stack of `LinearCritic`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import Array, Int, PRNGKeyArray

from eqrl import SAC, TD3, EnvSpec, Metrics, SACState, TD3State, Transition
from eqrl.nn import Critic, Deterministic, Gaussian
from tests.toy import (
    GetKey,
    LinearCritic,
    equations,
    make_linear_actor,
    make_linear_critic,
    make_linear_gaussian,
    random_transitions,
)


_SPEC = EnvSpec(observation_size=3, action_size=2)
_BATCH_SIZE = 5

_Arrays = dict[str, np.ndarray]
# The networks of a state, and metrics.
_Expected = tuple[dict[str, _Arrays], dict[str, float]]


def _linear(kind: type[SAC | TD3], **options: Any) -> Any:
    given: dict[str, Any] = {
        "actor_lr": 0.1,
        "critic_lr": 0.2,
        "discount": 0.9,
        "target_step_size": 0.25,
        "make_critic": make_linear_critic,
        "make_optimizer": optax.sgd,
    }
    if kind is SAC:
        given |= {"temperature_lr": 0.3, "initial_temperature": 0.5}
        given |= {"make_actor": make_linear_gaussian}
    else:
        given |= {"policy_noise": 0.5, "noise_clip": 0.4}
        given |= {"make_actor": make_linear_actor}
    return kind(**given | options)


@eqx.filter_jit
def _init(agent: SAC | TD3, *, key: PRNGKeyArray) -> Any:
    return agent.init(_SPEC, key=key)


def _random_batch(getkey: GetKey) -> Transition[None]:
    return random_transitions(getkey(), _BATCH_SIZE, observation_size=3, action_size=2)


@eqx.filter_jit
def _update_at(
    agent: Any, state: Any, batch: Transition[None], step: Array, key: PRNGKeyArray
) -> tuple[Any, Metrics]:
    return agent.update(state, batch, step=step, key=key)


def _update(
    agent: Any, state: Any, batch: Transition[None], key: PRNGKeyArray, step: int = 0
) -> tuple[Any, Metrics]:
    return _update_at(agent, state, batch, jnp.asarray(step), key)


class _Batch(NamedTuple):
    """The arrays of a batch."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    alive: np.ndarray


def _restated_batch(batch: Transition[None]) -> _Batch:
    arrays = (batch.observation, batch.action, batch.reward, batch.next_observation)
    return _Batch(
        *(np.asarray(x, np.float64) for x in arrays),
        alive=~np.asarray(batch.terminated),
    )


def _fields(module: Any) -> _Arrays:
    return {name: np.asarray(x, np.float64) for name, x in vars(module).items()}


def _values(
    critics: _Arrays, observation: np.ndarray, action: np.ndarray
) -> np.ndarray:
    """One row for each critic."""
    return (
        critics["observation_weight"] @ observation.T
        + critics["action_weight"] @ action.T
        + critics["bias"][:, None]
    )


def _critic_step(
    agent: SAC | TD3, critics: _Arrays, batch: _Batch, next_value: np.ndarray
) -> tuple[_Arrays, float]:
    """The critics after a step, and their loss before it."""
    target = float(agent.reward_scale) * batch.reward
    target += float(agent.discount) * batch.alive * next_value
    error = _values(critics, batch.observation, batch.action) - target
    rate = float(agent.critic_lr) / error.size
    critics = {
        "observation_weight": critics["observation_weight"]
        - rate * error @ batch.observation,
        "action_weight": critics["action_weight"] - rate * error @ batch.action,
        "bias": critics["bias"] - rate * error.sum(axis=1),
    }
    return critics, float(0.5 * np.mean(error**2))


def _target_step(agent: SAC | TD3, new: _Arrays, old: _Arrays) -> _Arrays:
    step_size = float(agent.target_step_size)
    return {name: step_size * new[name] + (1 - step_size) * old[name] for name in old}


def _noise(key: PRNGKeyArray) -> np.ndarray:
    """What the actor of SAC draws for a batch with this key."""
    return np.asarray(
        jax.vmap(lambda key: jr.normal(key, (2,)))(jr.split(key, _BATCH_SIZE)),
        np.float64,
    )


class _Actions(NamedTuple):
    """Actions of a linear tanh-normal, and what its gradients need."""

    action: np.ndarray
    log_prob: np.ndarray
    scaled_noise: np.ndarray


def _act(actor: _Arrays, observation: np.ndarray, noise: np.ndarray) -> _Actions:
    scaled_noise = np.exp(actor["log_scale"]) * noise
    action = np.tanh(observation @ actor["weight"].T + scaled_noise)
    log_normal = -0.5 * noise**2 - 0.5 * math.log(2 * math.pi) - actor["log_scale"]
    log_prob = np.sum(log_normal - np.log(1 - action**2), axis=1)
    return _Actions(action, log_prob, scaled_noise)


def _restated_sac(
    agent: SAC, state: SACState, batch: Transition[None], key: PRNGKeyArray
) -> _Expected:
    """The networks and metrics of an update; with these, the log of the temperature."""
    actor, critics, targets = map(
        _fields, (state.actor, state.critics, state.target_critics)
    )
    given = _restated_batch(batch)
    temperature = math.exp(float(state.log_temperature))
    next_key, actor_key = jr.split(key)

    following = _act(actor, given.next_observation, _noise(next_key))
    next_value = _values(targets, given.next_observation, following.action).min(axis=0)
    next_value -= temperature * following.log_prob
    critics, critic_loss = _critic_step(agent, critics, given, next_value)

    acted = _act(actor, given.observation, _noise(actor_key))
    by_critic = _values(critics, given.observation, acted.action)
    actor_loss = float(np.mean(temperature * acted.log_prob - by_critic.min(axis=0)))
    slope = critics["action_weight"][by_critic.argmin(axis=0)]
    # d log_prob / du = 2 tanh(u), with u the value before tanh, and dQ/du by the chain.
    by_before = 2 * temperature * acted.action - slope * (1 - acted.action**2)
    gradients = {
        "weight": by_before.T @ given.observation / _BATCH_SIZE,
        "log_scale": np.mean(by_before * acted.scaled_noise - temperature, axis=0),
    }
    rate = float(agent.actor_lr)

    entropy = -float(np.mean(acted.log_prob))
    target_entropy = (
        -2.0 if agent.target_entropy is None else float(agent.target_entropy)
    )
    temperature_loss = temperature * (entropy - target_entropy)
    networks = {
        "actor": {name: actor[name] - rate * gradients[name] for name in actor},
        "critics": critics,
        "target_critics": _target_step(agent, critics, targets),
    }
    return networks, {
        "actor_loss": actor_loss,
        "critic_loss": critic_loss,
        "temperature_loss": temperature_loss,
        "temperature": temperature,
        "entropy": entropy,
        "log_temperature": float(state.log_temperature)
        - float(agent.temperature_lr) * temperature_loss,
    }


def _restated_td3(
    agent: TD3, state: TD3State, batch: Transition[None], key: PRNGKeyArray
) -> _Expected:
    """The networks and metrics of an update in which the actor moves."""
    critics, targets = _fields(state.critics), _fields(state.target_critics)
    weight = _fields(state.actor)["weight"]
    target_actor = _fields(state.target_actor)
    given = _restated_batch(batch)

    noise = float(agent.policy_noise) * np.asarray(
        jr.normal(key, (_BATCH_SIZE, 2)), float
    )
    noise = np.clip(noise, -float(agent.noise_clip), float(agent.noise_clip))
    next_action = np.tanh(given.next_observation @ target_actor["weight"].T)
    next_action = np.clip(next_action + noise, -1, 1)
    next_value = _values(targets, given.next_observation, next_action).min(axis=0)
    critics, critic_loss = _critic_step(agent, critics, given, next_value)

    acted = np.tanh(given.observation @ weight.T)
    first = {name: value[:1] for name, value in critics.items()}
    actor_loss = -float(np.mean(_values(first, given.observation, acted)))
    by_before = -critics["action_weight"][:1] * (1 - acted**2)
    gradient = by_before.T @ given.observation / _BATCH_SIZE
    actor = {"weight": weight - float(agent.actor_lr) * gradient}

    networks = {
        "actor": actor,
        "target_actor": _target_step(agent, actor, target_actor),
        "critics": critics,
        "target_critics": _target_step(agent, critics, targets),
    }
    return networks, {"actor_loss": actor_loss, "critic_loss": critic_loss}


# The first ones of each kind share a program.
_AGENTS = {
    "SAC": _linear(SAC),
    "SAC, rewards scaled": _linear(SAC, reward_scale=3.0),
    "SAC, one critic": _linear(SAC, num_critics=1),
    "SAC, three critics": _linear(SAC, num_critics=3, target_entropy=-0.7),
    "TD3": _linear(TD3),
    "TD3, rewards scaled": _linear(TD3, reward_scale=3.0),
    "TD3, no noise": _linear(TD3, policy_noise=0.0),
    "TD3, one critic": _linear(TD3, num_critics=1),
    "TD3, three critics": _linear(TD3, num_critics=3),
}
_each_agent = pytest.mark.parametrize("agent", _AGENTS.values(), ids=list(_AGENTS))
_each_kind = pytest.mark.parametrize("kind", [SAC, TD3])


def _standstill(learning_rate: object) -> optax.GradientTransformation:
    """An optimizer that changes nothing."""
    del learning_rate
    return optax.set_to_zero()


class TestUpdate:
    @_each_agent
    def test_is_as_restated_in_numpy(self, agent: Any, getkey: GetKey) -> None:
        # The second of two updates, by which critics and targets have come to differ.
        state = _init(agent, key=getkey())
        state, _ = _update(agent, state, _random_batch(getkey), getkey())
        batch, key = _random_batch(getkey), getkey()
        after, metrics = _update(agent, state, batch, jr.clone(key))
        restated: Any = _restated_sac if isinstance(agent, SAC) else _restated_td3
        networks, numbers = restated(agent, state, batch, key)
        for part, arrays in networks.items():
            for field, array in arrays.items():
                np.testing.assert_allclose(
                    getattr(getattr(after, part), field),
                    array,
                    rtol=1e-4,
                    atol=1e-4,
                    err_msg=f"{part}.{field}",
                )
        found: dict[str, Any] = dict(metrics)
        if isinstance(agent, SAC):
            found["log_temperature"] = after.log_temperature
        assert set(found) == set(numbers)
        for name, value in numbers.items():
            np.testing.assert_allclose(
                found[name], value, rtol=1e-4, atol=1e-5, err_msg=name
            )

    def test_fixed_temperature_stays(self, getkey: GetKey) -> None:
        agent = _linear(SAC, learn_temperature=False)
        state = _init(agent, key=getkey())
        after, metrics = _update(agent, state, _random_batch(getkey), getkey())
        np.testing.assert_array_equal(after.log_temperature, state.log_temperature)
        np.testing.assert_allclose(metrics["temperature"], 0.5, rtol=1e-6)

    def test_fixed_temperature_is_the_agents_at_each_update(
        self, getkey: GetKey
    ) -> None:
        # As population based training changes it, long after `init`.
        agent = _linear(SAC, learn_temperature=False, initial_temperature=2.0)
        begun = _linear(SAC, learn_temperature=False)
        batch, key = _random_batch(getkey), getkey()
        state = _init(begun, key=getkey())
        after, metrics = _update(agent, state, batch, jr.clone(key))
        np.testing.assert_allclose(metrics["temperature"], 2.0, rtol=1e-6)
        np.testing.assert_allclose(after.log_temperature, math.log(2), rtol=1e-6)
        _, before = _update(begun, state, batch, key)
        assert metrics["critic_loss"] != before["critic_loss"]
        assert metrics["actor_loss"] != before["actor_loss"]

    @_each_kind
    def test_truncation_makes_no_difference(
        self, kind: type[SAC | TD3], getkey: GetKey
    ) -> None:
        agent, batch, key = _linear(kind), _random_batch(getkey), getkey()
        state = _init(agent, key=getkey())
        cut = eqx.tree_at(lambda b: b.truncated, batch, ~batch.terminated)
        first, second = (_update(agent, state, b, jr.clone(key)) for b in (batch, cut))
        assert bool(eqx.tree_equal(first, second))

    @_each_kind
    def test_what_is_next_makes_no_difference_where_terminated(
        self, kind: type[SAC | TD3], getkey: GetKey
    ) -> None:
        agent, batch, key = _linear(kind), _random_batch(getkey), getkey()
        batch = eqx.tree_at(lambda b: b.terminated, batch, jnp.ones(_BATCH_SIZE, bool))
        state = _init(agent, key=getkey())
        other = eqx.tree_at(
            lambda b: b.next_observation, batch, batch.next_observation + 5
        )
        first, second = (
            _update(agent, state, b, jr.clone(key)) for b in (batch, other)
        )
        assert bool(eqx.tree_equal(first, second))

    @_each_kind
    def test_what_critics_see_belongs_to_the_same_states(
        self, kind: type[SAC | TD3], getkey: GetKey
    ) -> None:
        agent, batch, key = _linear(kind), _random_batch(getkey), getkey()
        state = _init(agent, key=getkey())
        seen = dataclasses.replace(
            batch,
            critic_observation=batch.observation,
            next_critic_observation=batch.next_observation,
        )
        first, second = (_update(agent, state, b, jr.clone(key)) for b in (batch, seen))
        assert bool(eqx.tree_equal(first, second, rtol=1e-5, atol=1e-6))

    @_each_kind
    def test_each_part_has_the_optimizer_given_for_it(
        self, kind: type[SAC | TD3], getkey: GetKey
    ) -> None:
        # Only the second, of the critics, moves anything.
        optimizers = (_standstill, optax.sgd, _standstill)[: 3 if kind is SAC else 2]
        agent = _linear(kind, make_optimizer=optimizers)
        state = _init(agent, key=getkey())
        after, _ = _update(agent, state, _random_batch(getkey), getkey())
        assert bool(eqx.tree_equal(after.actor, state.actor))
        if kind is SAC:
            assert bool(eqx.tree_equal(after.log_temperature, state.log_temperature))
        assert np.all(after.critics.action_weight != state.critics.action_weight)

    @pytest.mark.parametrize(
        ("kind", "part"),
        [
            *((SAC, part) for part in ("actor", "critic", "temperature")),
            *((TD3, part) for part in ("actor", "critic")),
        ],
    )
    def test_each_part_has_a_rate_of_its_own(
        self, kind: type[SAC | TD3], part: str, getkey: GetKey
    ) -> None:
        fields = {"actor": "actor", "critic": "critics"}
        if kind is SAC:
            fields["temperature"] = "log_temperature"
        rates = {f"{name}_lr": 0.1 if name == part else 0.0 for name in fields}
        agent = _linear(kind, **rates)
        state = _init(agent, key=getkey())
        after, _ = _update(agent, state, _random_batch(getkey), getkey())
        for name, field in fields.items():
            stays = eqx.tree_equal(getattr(after, field), getattr(state, field))
            assert bool(stays) == (name != part)


class TestDelay:
    @pytest.mark.parametrize(
        ("policy_delay", "moving"),
        [(1, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 2, 4, 6]), (3, [0, 3, 6])],
    )
    def test_the_actor_moves_once_a_period_alone(
        self, policy_delay: int, moving: list[int], getkey: GetKey
    ) -> None:
        # And its loss is nan where it does not; the critics move at every update.
        agent = _linear(TD3, policy_delay=policy_delay, make_optimizer=optax.adam)
        state = _init(agent, key=getkey())
        moved: dict[str, list[int]] = {name: [] for name in vars(state)}
        for step in range(7):
            after, metrics = _update(
                agent, state, _random_batch(getkey), getkey(), step
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
        agent = _linear(TD3)
        keys = jax.eval_shape(lambda: jr.split(jr.key(0), 3))
        states = eqx.filter_eval_shape(
            eqx.filter_vmap(lambda key: agent.init(_SPEC, key=key)), keys
        )
        batch = jax.eval_shape(lambda: _random_batch(lambda: jr.key(0)))
        step = jax.ShapeDtypeStruct((), jnp.int32)

        def update(
            states: TD3State,
            batch: Transition[None],
            step: Int[Array, ""],
            keys: PRNGKeyArray,
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


def _short(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes actors with one action too few."""
    return lambda observation_size, action_size, *, key: make(
        observation_size, action_size - 1, key=key
    )


class _VectorCritic(eqx.Module):
    critic: LinearCritic

    def __call__(self, observation: Array, action: Array) -> Array:
        return self.critic(observation, action)[None]


def _make_vector_critic(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> _VectorCritic:
    return _VectorCritic(make_linear_critic(observation_size, action_size, key=key))


_VECTOR_REWARD = EnvSpec(observation_size=3, action_size=2, reward_size=2)
_TOO_SHORT = r"`make_actor`.*\(1,\).*takes \(2,\)"

# Agents, the environment, and what is said where the two do not fit.
_MISFITS = [
    (_linear(SAC), _VECTOR_REWARD, "`SAC` learns from a scalar reward"),
    (_linear(TD3), _VECTOR_REWARD, "`TD3` learns from a scalar reward"),
    (_linear(SAC, make_actor=_short(make_linear_gaussian)), _SPEC, _TOO_SHORT),
    (_linear(TD3, make_actor=_short(make_linear_actor)), _SPEC, _TOO_SHORT),
    (
        _linear(SAC, make_critic=_make_vector_critic),
        _SPEC,
        r"`make_critic`.*\(1,\).*scalar",
    ),
    (
        _linear(SAC, make_critic=lambda *sizes, key: lambda both: jnp.sum(both)),
        _SPEC,
        r"cannot be called as `make_critic\(\.\.\.\)\(observation, action\)`",
    ),
    (_linear(SAC, target_entropy=2.0), _SPEC, "`target_entropy=2` is more than 1.39"),
]


class TestInit:
    @_each_agent
    def test_critics_are_as_many_as_asked_for_and_all_different(
        self, agent: Any, getkey: GetKey
    ) -> None:
        state = _init(agent, key=getkey())
        assert state.critics.action_weight.shape == (agent.num_critics, 2)
        assert len(np.unique(state.critics.bias)) == agent.num_critics

    @_each_kind
    def test_targets_begin_as_copies(
        self, kind: type[SAC | TD3], getkey: GetKey
    ) -> None:
        # Not jitted, for a compiled function copies what it returns twice.
        state = _linear(kind).init(_SPEC, key=getkey())
        pairs = [(state.target_critics, state.critics)]
        if kind is TD3:
            pairs.append((state.target_actor, state.actor))
        for copy, original in pairs:
            assert bool(eqx.tree_equal(copy, original))
            for x, y in zip(
                jax.tree.leaves(copy), jax.tree.leaves(original), strict=True
            ):
                assert x.unsafe_buffer_pointer() != y.unsafe_buffer_pointer()

    def test_temperature_begins_as_asked_for(self, getkey: GetKey) -> None:
        state = _init(_linear(SAC, initial_temperature=0.25), key=getkey())
        np.testing.assert_allclose(np.exp(state.log_temperature), 0.25, rtol=1e-6)

    def test_what_does_not_fit_the_environment_is_named(self, getkey: GetKey) -> None:
        for agent, spec, message in _MISFITS:
            with pytest.raises(ValueError, match=message):
                agent.init(spec, key=getkey())


@_each_kind
def test_actions_are_those_of_the_actor(kind: type[SAC | TD3], getkey: GetKey) -> None:
    agent = _linear(kind)
    state = _init(agent, key=getkey())
    observation, key = jnp.array([0.1, -0.2, 0.3]), getkey()
    acted = state.actor(observation)
    greedy, _, _ = agent.act(state, None, observation, mode="greedy", key=jr.clone(key))
    expected = acted.mode() if kind is SAC else acted
    np.testing.assert_array_equal(greedy, expected)
    if kind is SAC:
        sample, _, _ = agent.act(state, None, observation, mode="sample", key=key)
        np.testing.assert_array_equal(sample, acted.sample(key=jr.clone(key)))


def test_random_actions_are_uniform_in_the_box(getkey: GetKey) -> None:
    agent = _linear(SAC)
    state = _init(agent, key=getkey())
    actions = jax.vmap(
        lambda key: agent.act(state, None, jnp.ones(3), mode="random", key=key)[0]
    )(jr.split(getkey(), 4_000))
    hits, _ = np.histogram(actions, bins=8, range=(-1, 1))
    assert hits.sum() == actions.size
    np.testing.assert_allclose(hits, actions.size / 8, rtol=0.12)


def test_samples_of_td3_have_the_exploration_noise(getkey: GetKey) -> None:
    agent = _linear(TD3, exploration_noise=0.05)
    state = _init(agent, key=getkey())
    observation = jnp.array([0.01, -0.02, 0.03])
    samples = jax.vmap(
        lambda key: agent.act(state, None, observation, mode="sample", key=key)[0]
    )(jr.split(getkey(), 4_000))
    np.testing.assert_allclose(
        np.mean(samples, axis=0), state.actor(observation), atol=0.005
    )
    np.testing.assert_allclose(np.std(samples, axis=0), [0.05, 0.05], rtol=0.06)


def test_default_networks_are_two_layers_of_256() -> None:
    assert SAC().make_actor == Gaussian((256, 256))
    assert TD3().make_actor == Deterministic((256, 256))
    assert SAC().make_critic == TD3().make_critic == Critic((256, 256))
