import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl._agents.wrappers.intrinsic import find
from eqrl._interaction import evaluate_skills as evaluating
from eqrl.envs import Point

from ..agents_under_test import diayn, sac
from ..population.pusher import Pusher
from ..toy import Clock, Compass, GetKey, random_transitions


ENV = Point(max_steps=3, goal=(0.0, 0.0))
# A clip of the action leaves only some directions as they are.
DIRECTIONS = jnp.array([[1.0, 0.0], [-0.6, 0.8], [0.0, -1.0]])


class Direction(eqrl.nn.AbstractSkillDistribution):
    """The skill is where one is: a density that falls off by the distance."""

    place: Float[Array, "2"]

    def log_prob(self, skill: Float[Array, "2"]) -> Float[Array, ""]:
        return -jnp.sum((10 * self.place - skill) ** 2)

    def mode(self) -> Float[Array, "2"]:
        return 10 * self.place


def make_direction(
    descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
) -> Callable[[Float[Array, "2"]], Direction]:
    del descriptor_size, skill_size, key
    return Direction


def make(**options: Any) -> eqrl.Intrinsic[Any, Any, Any, Any]:
    options = {"make_network": make_direction} | options
    return eqrl.diayn(Compass(), eqrl.SphereSkills(), **options)


def evaluate(agent: Any = None, **options: Any) -> eqrl.SkillEvaluation:
    agent = make() if agent is None else agent
    env = options.pop("env", ENV)
    state = agent.init(env.spec, key=jr.key(0))
    options = {"num_episodes": 2, "key": jr.key(1), "skills": DIRECTIONS} | options
    return eqrl.evaluate_skills(agent, state, env, **options)


def test_each_skill_is_shown_from_beginning_to_end() -> None:
    evaluation = evaluate()
    steps = 0.1 * np.arange(1, 4)[:, None]
    expected = np.asarray(DIRECTIONS)[:, None, None] * steps
    np.testing.assert_allclose(
        evaluation.descriptors, np.broadcast_to(expected, (3, 2, 3, 2)), atol=1e-6
    )
    # Where the point begins, before the first of these steps.
    np.testing.assert_array_equal(evaluation.first_descriptors, np.zeros((3, 2, 2)))
    np.testing.assert_array_equal(evaluation.skills, DIRECTIONS)
    np.testing.assert_array_equal(evaluation.lengths, np.full((3, 2), 3))
    assert evaluation.mask.all()
    # 0.1, 0.2 and 0.3 away from the goal.
    np.testing.assert_allclose(evaluation.returns, np.full((3, 2), -0.6), rtol=1e-5)
    # After k steps the distance of the direction is k - 1; and - log p each time.
    worth = -(0 + 1 + 4) + 3 * math.log(2 * math.pi)
    np.testing.assert_allclose(
        evaluation.diversity_returns, np.full((3, 2), worth), rtol=1e-5
    )
    np.testing.assert_allclose(
        evaluation.recovered_skills[:, 0, 0], DIRECTIONS, atol=1e-5
    )
    assert evaluation.accuracy == 1


def test_accuracy_counts_steps_that_give_away_another_skill() -> None:
    # The second is behind the first, at which it looks after two steps of three.
    skills = jnp.array([[1.0, 0.0], [2.5, 0.0], [0.0, -1.0]])
    evaluation = evaluate(skills=skills)
    recovered = np.asarray(evaluation.recovered_skills[:, :, :, None])
    distances = ((recovered - np.asarray(skills)) ** 2).sum(-1)
    right = distances.argmin(-1) == np.arange(3)[:, None, None]
    np.testing.assert_allclose(evaluation.accuracy, right.mean(), rtol=1e-6)
    assert 0 < evaluation.accuracy < 1


def test_accuracy_counts_equal_skills_as_one() -> None:
    skills = DIRECTIONS[jnp.array([2, 0, 2])]
    evaluation = evaluate(skills=skills.astype(int))
    assert evaluation.accuracy == 1


def test_steps_behind_the_end_of_an_episode_do_not_count() -> None:
    env = Clock(longest=4)
    agent = diayn(Pusher(), 2, (4,))
    evaluation = evaluate(agent, env=env, skills=None, num_episodes=5)
    lengths = np.asarray(evaluation.lengths)
    assert len(np.unique(lengths)) > 1
    # Each skill has episodes of its own.
    assert not np.array_equal(lengths[0], lengths[1])
    np.testing.assert_allclose(evaluation.returns, lengths * (lengths + 1) / 2)
    mask = np.asarray(evaluation.mask)
    np.testing.assert_array_equal(mask.sum(axis=2), lengths)
    network: Any = agent.init(env.spec, key=jr.key(0)).reward.network
    logits = jax.vmap(lambda x: network(x).logits)(
        evaluation.descriptors.reshape(-1, 1)
    )
    log_probs = jax.nn.log_softmax(logits).reshape(*mask.shape, 2)
    worth = np.stack([log_probs[0, ..., 0], log_probs[1, ..., 1]]) + math.log(2)
    np.testing.assert_allclose(
        evaluation.diversity_returns, (worth * mask).sum(axis=2), rtol=1e-4, atol=1e-4
    )
    # Of two skills the likelier one is worth more than nothing.
    np.testing.assert_allclose(evaluation.accuracy, (worth > 0)[mask].mean(), rtol=1e-6)


def test_a_reward_is_told_the_return_of_each_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = lambda self, state, batch, **_: batch.episode_return
    monkeypatch.setattr(eqrl.Discriminator, "reward", told)
    agent = diayn(Pusher(), 2, (4,))
    found = evaluate(agent, env=Clock(longest=4), skills=None, num_episodes=6)
    expected = np.asarray(found.returns) * np.asarray(found.lengths)
    assert len(np.unique(expected)) > 1
    np.testing.assert_allclose(found.diversity_returns, expected)


def test_an_episode_is_no_longer_than_asked_for() -> None:
    shown = eqx.filter_eval_shape(evaluate, max_steps=2)
    assert shown.mask.shape == (3, 2, 2)


def test_actions_are_picked_as_asked_for() -> None:
    agent = diayn(Pusher(), 2, ())
    greedy, sampled = (
        evaluate(agent, skills=None, mode=mode).descriptors
        for mode in ("greedy", "sample")
    )
    # `Point` itself draws nothing.
    np.testing.assert_array_equal(greedy[:, 0], greedy[:, 1])
    assert not np.allclose(sampled[:, 0], sampled[:, 1])


@pytest.mark.checks_keys
def test_the_diversity_return_is_the_mean_of_all() -> None:
    agent = diayn(Pusher(), 2, ())
    state, key = agent.init(ENV.spec, key=jr.key(0)), jr.key(1)
    evaluation = eqrl.evaluate_skills(agent, state, ENV, num_episodes=2, key=key)
    found = eqrl.diversity_return(agent, state, ENV, num_episodes=2, key=key)
    np.testing.assert_allclose(found, np.mean(evaluation.diversity_returns), rtol=1e-6)
    with pytest.raises(ValueError, match="no `Intrinsic` in SkillConditioned"):
        eqrl.diversity_return(agent.inner, state.agent, ENV, num_episodes=2, key=key)
    # All skills of a prior that has but a few were shown.
    np.testing.assert_array_equal(evaluation.skills, np.eye(2))
    assert evaluation.descriptors.shape == (2, 2, 3, 2)


def test_skills_are_dealt_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = eqrl.SkillConditioned(Compass(), eqrl.EvenOneHotSkills(2))
    dealt: list[Any] = []

    def stop(*given: Any, **options: Any) -> None:
        del options
        dealt.append(given[3])
        raise InterruptedError

    monkeypatch.setattr(evaluating, "_evaluate", stop)
    with pytest.raises(InterruptedError):
        evaluate(agent, skills=3)
    np.testing.assert_array_equal(dealt[0], np.eye(2)[[0, 1, 0]])


def test_skills_are_drawn_where_there_is_no_end_of_them() -> None:
    agent = make()
    state = agent.init(ENV.spec, key=jr.key(0))
    shown = eqx.filter_eval_shape(
        eqrl.evaluate_skills, agent, state, ENV, num_episodes=1, key=jr.key(1)
    )
    assert shown.skills.shape == (16, 2)
    drawn = evaluate(skills=5).skills
    np.testing.assert_allclose(jnp.linalg.norm(drawn, axis=1), 1, rtol=1e-5)
    assert len(np.unique(drawn, axis=0)) == 5


def test_a_normalization_around_the_discriminator_is_applied(getkey: GetKey) -> None:
    agent = eqrl.Normalized(make(descriptor=lambda observation: observation[:2]))
    state = agent.init(ENV.spec, key=getkey())
    statistics = eqrl.RunningStatistics(
        count=jnp.asarray(4.0),
        mean=jnp.array([1.0, 2.0, 0.0, 0.0]),
        summed_squares=4 * jnp.array([0.25, 1.0, 1.0, 1.0]),
    )
    state = eqrl.NormalizedState(agent=state.agent, statistics=statistics)
    evaluation = eqrl.evaluate_skills(
        agent, state, ENV, num_episodes=1, key=getkey(), skills=DIRECTIONS[:1]
    )
    # Where it is, less the mean, by the deviation; one step to the right at a time.
    expected = (np.array([[0.1, 0], [0.2, 0], [0.3, 0]]) - [1, 2]) / [0.5, 1]
    np.testing.assert_allclose(evaluation.descriptors[0, 0], expected, rtol=1e-4)
    first = np.asarray(evaluation.first_descriptors)
    np.testing.assert_allclose(first, [[[-2, -2]]], rtol=1e-4)


def test_the_diversity_return_can_be_mapped_over_a_population() -> None:
    def make_agent(key: PRNGKeyArray) -> tuple[Any, Any]:
        agent = diayn(Pusher(), 2, ())
        return agent, agent.init(ENV.spec, key=key)

    def score(agent: Any, state: Any) -> Float[Array, ""]:
        return eqrl.diversity_return(agent, state, ENV, num_episodes=1, key=jr.key(2))

    agent, states = eqx.filter_vmap(make_agent)(jr.split(jr.key(0), 3))
    scores = np.asarray(eqx.filter_vmap(score)(agent, states))
    assert scores.shape == (3,) and len(np.unique(scores)) == 3


@pytest.mark.long
def test_the_diversity_return_is_a_score(getkey: GetKey) -> None:
    # `Compass` learns nothing: what is trained is the discriminator.
    agent = make(make_network=eqrl.nn.VonMisesFisherDiscriminator((4,)))
    trainer = eqrl.Trainer(batch_size=4, capacity=40, warmup_steps=4)
    key = getkey()

    def score(agent: Any, state: Any, evaluation: Any) -> Float[Array, ""]:
        del evaluation
        return eqrl.diversity_return(
            agent, state, ENV, num_episodes=1, key=jr.clone(key)
        )

    population = eqrl.train_population(
        agent,
        ENV,
        trainer,
        eqrl.PBT(
            where=lambda a: (a.reward.lr,),
            priors=(eqrl.LogUniform(1e-4, 1e-2),),
            num_replaced=1,
            num_elite=1,
        ),
        size=3,
        num_generations=2,
        steps_per_generation=12,
        num_episodes=1,
        key=getkey(),
        score=score,
    )
    assert set(population.hyperparameters) == {"reward.lr"}
    assert (population.parents[1] != np.arange(3)).sum() == 1


@pytest.mark.parametrize("skills", [jnp.ones((3, 5)), jnp.ones((0, 2))])
def test_skills_that_do_not_fit_are_refused(skills: Array) -> None:
    with pytest.raises(ValueError, match=r"shape \(skills, 2\)"):
        evaluate(skills=skills)


def test_a_discriminator_is_found_within_a_sum() -> None:
    agent = make()
    total = eqrl.Intrinsic(agent.agent, eqrl.Sum((eqrl.Sum((agent.reward,)),)))
    state = total.init(ENV.spec, key=jr.key(0))
    found, reward_state, _ = find(total, state, None, eqrl.Discriminator)
    assert found is agent.reward
    assert isinstance(reward_state, eqrl.DiscriminatorState)


def test_a_stack_of_states_is_refused() -> None:
    agent = diayn(Pusher(), 2, ())
    state = agent.init(ENV.spec, key=jr.key(0))
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    with pytest.raises(ValueError, match=r"Give one state.*`equinox.filter_vmap`"):
        eqrl.evaluate_skills(agent, states, ENV, num_episodes=1, key=jr.key(1))


def test_an_agent_without_skills_is_refused() -> None:
    with pytest.raises(ValueError, match="SAC has no skills"):
        eqrl.evaluate_skills(sac(), None, ENV, num_episodes=1, key=jr.key(0))  # pyright: ignore[reportArgumentType]


class Alignment(eqrl.AbstractReward[None, eqrl.SkillExtras[Any]]):
    """How far the point moves along the skill."""

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> None:
        del spec, key

    def observe(self, state: None, transitions: Any) -> None:
        del state, transitions

    def reward(
        self, state: None, batch: eqrl.Transition[Any], *, step: Any, key: Any
    ) -> Float[Array, "*batch"]:
        del state, step, key
        move = batch.next_observation[..., :2] - batch.observation[..., :2]
        return jnp.sum(batch.extras.skill * move, axis=-1)

    def update(self, state: None, batch: Any, *, key: Any) -> tuple[None, Any]:
        del state, batch, key
        return None, {}


def test_skills_of_any_reward_are_played_and_summed() -> None:
    skilled = eqrl.SkillConditioned(Compass(), eqrl.SphereSkills())
    evaluation = evaluate(eqrl.Intrinsic(skilled, Alignment()))
    # Three steps of 0.1 in the direction of a skill of length 1.
    np.testing.assert_allclose(
        evaluation.diversity_returns, np.full((3, 2), 0.3), rtol=1e-5
    )
    np.testing.assert_allclose(evaluation.returns, np.full((3, 2), -0.6), rtol=1e-5)
    expected = np.asarray(DIRECTIONS)[:, None] * 0.3
    np.testing.assert_allclose(
        evaluation.descriptors[:, :, -1], expected.repeat(2, 1), atol=1e-6
    )
    assert np.isnan(evaluation.accuracy)
    assert np.isnan(evaluation.recovered_skills).all()
    # Nothing judges the skills of an agent alone.
    evaluation = evaluate(skilled, descriptor=lambda observation: observation[1:2])
    np.testing.assert_allclose(
        evaluation.descriptors[:, :, -1], expected.repeat(2, 1)[..., 1:], atol=1e-6
    )
    np.testing.assert_allclose(evaluation.returns, np.full((3, 2), -0.6), rtol=1e-5)
    assert np.isnan(evaluation.diversity_returns).all()
    with pytest.raises(ValueError, match="must give a vector of floats"):
        evaluate(skilled, descriptor=lambda observation: observation[0])


def test_a_reward_around_leaves_the_discriminator_and_observations() -> None:
    agent = eqrl.Normalized(eqrl.Intrinsic(make(), Alignment()))
    state = agent.init(ENV.spec, key=jr.key(0))
    rows = random_transitions(jr.key(1), 8, observation_size=4, action_size=2)
    state = dataclasses.replace(
        state, statistics=state.statistics.update(rows.observation)
    )
    evaluation = eqrl.evaluate_skills(
        agent,
        state,
        ENV,
        num_episodes=1,
        key=jr.key(1),
        skills=DIRECTIONS,
        descriptor=lambda observation: observation[:2],
    )
    expected = np.asarray(DIRECTIONS)[:, None, None] * 0.1 * np.arange(1, 4)[:, None]
    np.testing.assert_allclose(evaluation.descriptors, expected, atol=1e-6)
    assert np.isfinite(evaluation.accuracy)
    assert np.isfinite(evaluation.recovered_skills).all()


def test_steps_behind_the_end_are_not_compared_with_those_before(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "_BATCH_SIZE", 8)
    reward = eqrl.ParticleEntropy(num_neighbors=2)
    spec = eqrl.EnvSpec(observation_size=4, action_size=2)
    state = reward.init(spec, key=getkey())
    rows = random_transitions(getkey(), 16, observation_size=4, action_size=2)
    # Eight steps of sixteen, which are all in one batch, and again in another.
    mask = np.arange(4) < np.array([[[1], [4]], [[2], [1]]])
    within = jax.tree.map(lambda x: x[np.flatnonzero(mask)], rows)
    worth = reward.reward(state, within, step=jnp.zeros((), int), key=getkey())
    seen = jax.tree.map(lambda x: x.reshape(2, 2, 4, *x.shape[1:]), rows)
    found = evaluating._score(reward, state, seen, jnp.asarray(mask), key=getkey())
    np.testing.assert_allclose(found[mask], worth, rtol=1e-5)
    assert np.all(found[~mask] == 0)


@pytest.mark.long
def test_two_skills_are_told_apart_in_a_little_while() -> None:
    agent = diayn(
        sac(
            initial_temperature=0.1, actor_lr=3e-3, critic_lr=3e-3, temperature_lr=3e-3
        ),
        2,
        lr=3e-3,
    )
    env = Point(max_steps=10)
    trainer = eqrl.Trainer(batch_size=32, capacity=2000, warmup_steps=200)
    solution = eqrl.train(agent, env, trainer, num_steps=2000, key=jr.key(0))
    before = agent.init(env.spec, key=jr.key(1))
    accuracies = [
        float(
            eqrl.evaluate_skills(
                agent, state, env, num_episodes=1, key=jr.key(2)
            ).accuracy
        )
        for state in (before, solution.state)
    ]
    assert accuracies[0] < 0.8
    assert accuracies[1] > 0.95
    assert jax.tree.all(jax.tree.map(lambda x: jnp.isfinite(x).all(), solution.state))
