import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl._types.data import AnyTransition
from eqrl.envs import Point

from ..agents_under_test import sac
from ..skilled import skill_transitions
from ..toy import Compass, GetKey, random_transitions


SPEC = eqrl.EnvSpec(observation_size=4, action_size=2, state_descriptor_size=2)
ZERO = jnp.zeros((), int)


def linear(
    descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
) -> eqrl.nn.CategoricalNetwork:
    """Logits that are linear in the descriptor."""
    network = eqrl.nn.Linear(descriptor_size, skill_size, key=key)
    return eqrl.nn.CategoricalNetwork(network)


def discriminator(skills: Any = 3, **options: Any) -> eqrl.Discriminator:
    options.setdefault("make_network", linear)
    return eqrl.Discriminator(skills, **options)


@eqx.filter_jit
def init(reward: eqrl.Discriminator, *, key: PRNGKeyArray) -> eqrl.DiscriminatorState:
    return reward.init(SPEC, key=key)


@eqx.filter_jit
def score(
    reward: eqrl.Discriminator, state: eqrl.DiscriminatorState, batch: AnyTransition
) -> Array:
    return reward.reward(state, batch, step=ZERO, key=jr.key(0))


@eqx.filter_jit
def update(
    reward: eqrl.Discriminator, state: eqrl.DiscriminatorState, batch: AnyTransition
) -> tuple[eqrl.DiscriminatorState, eqrl.Metrics]:
    return reward.update(state, batch, key=jr.key(0))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def layer_of(state: eqrl.DiscriminatorState) -> eqrl.nn.Linear:
    assert isinstance(state.network, eqrl.nn.CategoricalNetwork)
    assert isinstance(state.network.network, eqrl.nn.Linear)
    return state.network.network


def logits_of(state: eqrl.DiscriminatorState, descriptor: Array) -> np.ndarray:
    layer = layer_of(state)
    return np.asarray(descriptor) @ np.asarray(layer.weight) + np.asarray(layer.bias)


@pytest.mark.parametrize("include_prior", [True, False])
def test_the_reward_is_the_log_ratio_at_the_state_reached(
    include_prior: bool, getkey: GetKey
) -> None:
    prior = eqrl.OneHotSkills(3, [1.0, 1.0, 2.0])
    reward = discriminator(prior, include_prior=include_prior)
    state = init(reward, key=getkey())
    chosen = np.array([0, 2, 1, 2])
    batch = skill_transitions(getkey(), skill=jnp.eye(3)[chosen])
    assert batch.next_state_descriptor is not None
    log_probs = log_softmax(logits_of(state, batch.next_state_descriptor))
    expected = log_probs[np.arange(4), chosen]
    if include_prior:
        expected = expected - np.log(np.array([1, 1, 2]) / 4)[chosen]
    found = score(reward, state, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_skill_of_weight_0_is_scored_without_its_prior(getkey: GetKey) -> None:
    reward = discriminator(eqrl.OneHotSkills(3, [1.0, 1.0, 0.0]))
    state = init(reward, key=getkey())
    batch = skill_transitions(getkey(), skill=jnp.eye(3))
    assert batch.next_state_descriptor is not None
    expected = np.diag(log_softmax(logits_of(state, batch.next_state_descriptor)))
    expected = expected + np.array([math.log(2), math.log(2), 0])
    found = score(reward, state, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_network_that_knows_nothing_gives_no_reward(getkey: GetKey) -> None:
    reward = discriminator(4)
    state = init(reward, key=getkey())
    state = jax.tree.map(lambda x: jnp.zeros_like(x), state)
    batch = skill_transitions(getkey(), skill=jnp.eye(4))
    np.testing.assert_allclose(score(reward, state, batch), 0, atol=1e-6)


def test_an_update_is_a_step_down_the_cross_entropy(getkey: GetKey) -> None:
    reward = discriminator(3, lr=0.1, make_optimizer=optax.sgd)
    state = init(reward, key=getkey())
    skill = jnp.eye(3)[jnp.array([0, 2, 1, 2])]
    batch = skill_transitions(getkey(), skill=skill)
    assert batch.next_state_descriptor is not None
    descriptor = np.asarray(batch.next_state_descriptor)
    logits = logits_of(state, batch.next_state_descriptor)
    probabilities = np.exp(log_softmax(logits))
    # Of the mean cross-entropy, by hand.
    gradient = descriptor.T @ (probabilities - np.asarray(skill)) / 4
    after, metrics = update(reward, state, batch)
    loss = -(log_softmax(logits) * np.asarray(skill)).sum(axis=1).mean()
    np.testing.assert_allclose(metrics["discriminator_loss"], loss, rtol=1e-5)
    right = np.argmax(logits, axis=1) == np.array([0, 2, 1, 2])
    assert 0 < right.mean() < 1
    assert metrics["accuracy"] == right.mean()
    np.testing.assert_allclose(
        layer_of(after).weight,
        layer_of(state).weight - 0.1 * gradient,
        rtol=1e-4,
        atol=1e-6,
    )


def test_a_sequence_is_worth_what_its_steps_are(getkey: GetKey) -> None:
    reward = discriminator(3)
    state = init(reward, key=getkey())
    flat = skill_transitions(getkey(), skill=jnp.eye(3)[jnp.arange(6) % 3])
    sequences = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), flat)
    np.testing.assert_array_equal(
        score(reward, state, sequences),
        score(reward, state, flat).reshape(2, 3),
    )
    np.testing.assert_allclose(
        update(reward, state, sequences)[1]["discriminator_loss"],
        update(reward, state, flat)[1]["discriminator_loss"],
        rtol=1e-6,
    )


def first_two(observation: Float[Array, " obs"]) -> Float[Array, "2"]:
    return observation[:2]


@pytest.mark.parametrize(
    ("descriptor", "size"),
    [("state_descriptor", 2), ("observation", 4), (first_two, 2)],
)
def test_the_descriptor_is_of_the_state_reached(
    descriptor: Any, size: int, getkey: GetKey
) -> None:
    reward = discriminator(3, descriptor=descriptor)
    state = init(reward, key=getkey())
    assert layer_of(state).weight.shape == (size, 3)
    batch = skill_transitions(getkey(), skill=jnp.eye(3))
    expected = {
        "state_descriptor": batch.next_state_descriptor,
        "observation": batch.next_observation,
        first_two: batch.next_observation[:, :2],
    }[descriptor]
    np.testing.assert_array_equal(reward.descriptors(batch), expected)


def test_the_prior_decides_the_kind_of_network(getkey: GetKey) -> None:
    kinds = [
        (eqrl.OneHotSkills(3), eqrl.nn.CategoricalNetwork),
        (eqrl.EvenOneHotSkills(3), eqrl.nn.CategoricalNetwork),
        (eqrl.SphereSkills(), eqrl.nn.VonMisesFisherNetwork),
        (eqrl.NormalSkills(), eqrl.nn.NormalNetwork),
    ]
    for prior, kind in kinds:
        reward = eqrl.Discriminator(prior)
        state = eqx.filter_eval_shape(reward.init, SPEC, key=getkey())
        assert isinstance(state.network, kind)


def test_a_descriptor_the_environment_does_not_give_is_refused(
    getkey: GetKey,
) -> None:
    spec = dataclasses.replace(SPEC, state_descriptor_size=None)
    with pytest.raises(ValueError, match=r"observations of size 4.*'observation'"):
        discriminator(3).init(spec, key=getkey())


def test_a_descriptor_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="`descriptor='torso'` must be"):
        discriminator(3, descriptor="torso")


def cell(observation: Float[Array, " obs"]) -> Int[Array, "2"]:
    return observation[:2].astype(int)


@pytest.mark.parametrize("descriptor", [jnp.sum, cell])
def test_a_function_must_give_a_vector_of_floats(
    descriptor: Any, getkey: GetKey
) -> None:
    with pytest.raises(ValueError, match="must give a vector of floats"):
        init(discriminator(3, descriptor=descriptor), key=getkey())


def larger(
    descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
) -> eqrl.nn.CategoricalNetwork:
    """A network for one skill more than there are."""
    return linear(descriptor_size, skill_size + 1, key=key)


@pytest.mark.parametrize(
    ("skills", "make_network", "message"),
    [
        (
            eqrl.NormalSkills(2),
            eqrl.nn.VonMisesFisherDiscriminator((8,)),
            r"`VonMisesFisher`.*NormalSkills\(.*do not lie",
        ),
        (eqrl.SphereSkills(2), linear, r"`Categorical`.*SphereSkills\(.*vectors"),
        (3, larger, r"shape \(4,\).*\(3,\)"),
        (3, eqrl.nn.Linear, "AbstractSkillDistribution"),
        (3, eqrl.nn.NormalDiscriminator((8,)), r"`DiagonalNormal`.*are one-hot"),
        (3, eqrl.nn.VonMisesFisherDiscriminator((8,)), r"`VonMisesFisher`.*OneHot"),
    ],
)
def test_a_network_that_does_not_fit_the_skills_is_refused(
    skills: Any, make_network: Any, message: str
) -> None:
    reward = discriminator(skills, make_network=make_network)
    with pytest.raises(ValueError, match=message):
        reward.init(SPEC, key=jr.key(0))


def test_transitions_that_do_not_fit_are_refused(getkey: GetKey) -> None:
    reward = discriminator(3)
    state = init(reward, key=getkey())
    skill = skill_transitions(getkey(), skill=jnp.eye(3))
    for batch, message in (
        (
            random_transitions(getkey(), 2, observation_size=4, action_size=2),
            r"without a skill.*SkillConditioned",
        ),
        (
            dataclasses.replace(skill, next_state_descriptor=None),
            "describes no behavior",
        ),
        (skill_transitions(getkey(), skill=jnp.eye(4)), r"size 4.*size 3"),
    ):
        with pytest.raises(ValueError, match=message):
            score(reward, state, batch)


@pytest.mark.parametrize(
    ("skills", "others"),
    [
        (eqrl.OneHotSkills(3, [0.8, 0.1, 0.1]), eqrl.OneHotSkills(3)),
        (eqrl.EvenOneHotSkills(3), eqrl.OneHotSkills(3, [0.8, 0.1, 0.1])),
        (eqrl.NormalSkills(2), eqrl.SphereSkills(2)),
        (eqrl.OneHotSkills(2), eqrl.NormalSkills(2)),
        (eqrl.NormalSkills(2), eqrl.NormalSkills(3)),
    ],
)
def test_a_discriminator_of_other_skills_than_the_agents_is_refused(
    skills: eqrl.AbstractSkillPrior, others: eqrl.AbstractSkillPrior, getkey: GetKey
) -> None:
    agent = eqrl.Normalized(eqrl.SkillConditioned(Compass(), skills))
    reward = discriminator(others, descriptor="observation")
    intrinsic = eqrl.Intrinsic(agent, discriminator(skills, descriptor="observation"))
    with pytest.raises(ValueError, match=r"skills of the agent are.*same prior"):
        eqrl.Intrinsic(agent, reward)
    mixed = eqx.tree_at(lambda agent: agent.reward, intrinsic, reward)
    with pytest.raises(ValueError, match=r"skills of the agent are.*same prior"):
        eqrl.Trainer().init(mixed, Point(), key=getkey())


def test_skills_that_are_equally_likely_are_the_same() -> None:
    for skills, others in (
        (eqrl.EvenOneHotSkills(3), eqrl.OneHotSkills(3)),
        (eqrl.OneHotSkills(3), eqrl.OneHotSkills(3, [2.0, 2.0, 2.0])),
        (eqrl.OneHotSkills(2, [0.2, 0.8]), eqrl.OneHotSkills(2, [1.0, 4.0])),
        (eqrl.SphereSkills(3), eqrl.SphereSkills(3)),
        (eqrl.OneSkill(jnp.ones(2)), eqrl.NormalSkills(2)),
    ):
        agent = eqrl.SkillConditioned(Compass(), skills)
        eqrl.Intrinsic(agent, discriminator(others))


def test_weights_that_are_not_known_yet_are_not_compared() -> None:
    def make(weights: Float[Array, "3"]) -> eqrl.Intrinsic[Any, Any, Any, Any]:
        agent = eqrl.SkillConditioned(Compass(), eqrl.OneHotSkills(3, weights))
        return eqrl.Intrinsic(agent, discriminator(3))

    eqx.filter_eval_shape(make, jnp.ones(3))
    with pytest.raises(ValueError, match=r"NormalSkills.*same prior"):
        eqx.filter_jit(
            lambda: eqrl.Intrinsic(
                eqrl.SkillConditioned(Compass(), eqrl.NormalSkills(3)), discriminator(3)
            )
        )()


def test_a_learning_rate_is_no_less_than_0() -> None:
    with pytest.raises(ValueError, match="`lr=-1`"):
        discriminator(3, lr=-1.0)


def test_diayn_is_its_parts_around_any_agent() -> None:
    options: dict[str, Any] = {"environment_weight": 2, "reward_minibatches": 3}
    agent = eqrl.diayn(sac(), 5, lr=0.25, include_prior=False, **options)
    assert agent.reward_minibatches == 3
    assert isinstance(agent.agent, eqrl.SkillConditioned)
    assert isinstance(agent.reward, eqrl.Discriminator)
    assert agent.agent.skills is agent.reward.skills
    assert agent.agent.skills.size == 5
    assert float(agent.reward.lr) == 0.25
    assert not agent.reward.include_prior
    assert agent.environment_weight == 2


def test_the_losses_of_a_uniform_guess_are_known() -> None:
    def guess(descriptor: Float[Array, "1"]) -> eqrl.nn.Categorical:
        del descriptor
        return eqrl.nn.Categorical(jnp.zeros(4))

    descriptor, skill = jnp.zeros((2, 1)), jnp.eye(4)[:2]
    loss = eqrl.losses.discriminator_loss(guess, descriptor, skill)
    np.testing.assert_allclose(loss, math.log(4), rtol=1e-6)
    ratio = eqrl.losses.skill_log_ratio(
        guess, descriptor, skill, jnp.log(jnp.array([0.25, 0.5]))
    )
    np.testing.assert_allclose(ratio, [0, -math.log(2)], atol=1e-6)


def test_no_gradient_flows_through_the_log_ratio() -> None:
    def total(scale: Array) -> Array:
        return jnp.sum(
            eqrl.losses.skill_log_ratio(
                lambda x: eqrl.nn.Categorical(scale * x), jnp.eye(2), jnp.eye(2)
            )
        )

    assert jax.grad(total)(jnp.asarray(1.5)) == 0
