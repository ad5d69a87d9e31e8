from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl._population.members import choose_members
from eqrl.envs import Point

from ..agents_under_test import ALL_AGENTS, sac, taac
from ..toy import Clock


GetKey = Callable[[], PRNGKeyArray]
AGENT = sac()
ENV = Point(max_steps=7, goal=(0.3, 0.1))
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=60)
PBT = eqrl.PBT(
    where=lambda a: (a.actor_lr, a.discount),
    priors=(
        eqrl.LogUniform(1e-4, 1e-2),
        eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1)),
    ),
    num_replaced=1,
    num_elite=1,
)


def train(pbt: eqrl.PBT | None = PBT, **options: Any) -> eqrl.PopulationSolution:
    options = {"agent": AGENT, "env": ENV, "key": jr.key(0)} | options
    return eqrl.train_population(
        options.pop("agent"),
        options.pop("env"),
        TRAINER,
        pbt,
        size=3,
        num_generations=3,
        steps_per_generation=40,
        num_episodes=2,
        **options,
    )


@pytest.fixture(scope="module")
def solution() -> eqrl.PopulationSolution:
    return train()


def test_the_history_has_a_row_for_each_generation(
    solution: eqrl.PopulationSolution,
) -> None:
    assert solution.returns.shape == (3, 3, 2)
    assert solution.parents.shape == (3, 3)
    assert set(solution.hyperparameters) == {"actor_lr", "discount"}
    assert solution.hyperparameters["discount"].shape == (3, 3)
    assert solution.metrics["critic_loss"].shape == (3, 3)


def test_the_worst_of_a_generation_is_replaced_by_the_best(
    solution: eqrl.PopulationSolution,
) -> None:
    assert solution.parents[0].tolist() == [0, 1, 2]
    for generation in (1, 2):
        means = solution.returns[generation - 1].mean(axis=1)
        expected = np.arange(3)
        expected[means.argmin()] = means.argmax()
        assert np.array_equal(solution.parents[generation], expected)


def test_only_children_change_their_hyperparameters(
    solution: eqrl.PopulationSolution,
) -> None:
    rates = solution.hyperparameters["actor_lr"]
    changed = rates[1:] != rates[:-1]
    assert np.array_equal(changed, solution.parents[1:] != np.arange(3))


def test_members_make_the_same_number_of_updates(
    solution: eqrl.PopulationSolution,
) -> None:
    assert int(solution.counts.updates) == 50


def test_without_selection_nobody_is_replaced() -> None:
    parents = train(None).parents
    assert np.array_equal(parents, np.tile(np.arange(3), (3, 1)))


def test_a_stack_of_agents_is_taken_as_it_is(getkey: GetKey) -> None:
    agents = PBT.init(AGENT, 3, key=getkey())
    assert eqx.tree_equal(train(None, agent=agents).agents, agents)


def test_a_single_agent_may_hold_as_many_weights_as_there_are_members(
    getkey: GetKey,
) -> None:
    skills = eqrl.OneHotSkills(3, [1.0, 2.0, 3.0])
    solution = train(None, agent=eqrl.SkillConditioned(AGENT, skills), key=getkey())
    assert solution.agents.skills.weights.shape == (3, 3)
    stack = solution.agents
    assert eqx.tree_equal(train(None, agent=stack, key=getkey()).agents, stack)


def test_a_stack_of_agents_stays_usable(getkey: GetKey) -> None:
    agents = PBT.init(AGENT, 3, key=getkey())
    train(agent=agents)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(agents))


def test_members_in_turn_and_together_agree(getkey: GetKey) -> None:
    key = getkey()
    together, in_turn = (
        train(None, members=members, key=jr.clone(key))
        for members in ("together", "in_turn")
    )
    assert eqx.tree_equal(together.states, in_turn.states, rtol=1e-3, atol=1e-4)
    assert eqx.tree_equal(together.counts, in_turn.counts)


def test_members_run_in_turn_on_a_processor_unless_told_otherwise(
    getkey: GetKey,
) -> None:
    key = getkey()
    default, in_turn = (
        train(members=members, key=jr.clone(key)) for members in (None, "in_turn")
    )
    assert eqx.tree_equal(default.trainer_states, in_turn.trainer_states)
    assert choose_members(None, None) == "in_turn"


def test_an_unknown_way_to_run_members_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where types are checked at run time, that refuses it first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"'parallel'.*'together', 'in_turn' or None"):
        train(members="parallel")


@pytest.mark.parametrize("name", list(ALL_AGENTS))
def test_a_member_in_turn_equals_the_agent_alone_bit_for_bit(name: str) -> None:
    agent = ALL_AGENTS[name]
    solution = train(None, agent=agent, members="in_turn")
    # As `train_population` derives them from its key, for member 1.
    init_key = jr.split(jr.fold_in(jr.key(0), 1), 3)[1]
    run_key = jr.fold_in(jr.fold_in(jr.key(0), 2), 1)
    state, counts = eqrl.jit_init(TRAINER, agent, ENV, key=init_key)
    for _ in range(3):
        state, counts, _ = eqrl.jit_run(
            TRAINER, agent, ENV, state, counts, num_steps=40, key=run_key
        )
    assert eqx.tree_equal(eqrl.member(solution.trainer_states, 1), state)


def test_the_score_decides_who_is_replaced() -> None:
    def discount_of(agent: Any, state: Any, evaluation: Any) -> Float[Array, ""]:
        del state, evaluation
        return agent.discount

    solution = train(score=discount_of)
    worst = solution.hyperparameters["discount"][0].argmin()
    assert (
        solution.parents[1][worst] == solution.hyperparameters["discount"][0].argmax()
    )


def _vector_evaluation() -> eqrl.Evaluation:
    return eqrl.Evaluation(
        returns=jnp.array([[1.0, 10.0], [3.0, 30.0]]),
        lengths=jnp.ones(2, int),
        descriptors=None,
    )


def test_vectors_of_returns_are_weighed_as_the_agent_weighs_rewards() -> None:
    evaluation = _vector_evaluation()
    agent = eqrl.Normalized(eqrl.TAAC(reward_weights=(2.0, -0.5)))
    assert eqrl.weighted_return(agent, None, evaluation) == 2 * 2 - 0.5 * 20
    assert eqrl.weighted_return(eqrl.TAAC(), None, evaluation) == 22


def test_returns_cannot_be_weighed_without_a_taac_or_vectors() -> None:
    with pytest.raises(ValueError, match="there is none in SAC"):
        eqrl.weighted_return(AGENT, None, _vector_evaluation())
    scalar = eqrl.Evaluation(
        returns=jnp.ones(2), lengths=jnp.ones(2, int), descriptors=None
    )
    with pytest.raises(ValueError, match="leave `score` out"):
        eqrl.weighted_return(eqrl.TAAC(), None, scalar)


def test_a_population_learns_from_vectors_of_rewards(getkey: GetKey) -> None:
    solution = train(
        agent=taac(window_length=2, reward_weights=(1.0, -1.0)),
        env=Clock(longest=3, reward_size=2),
        score=eqrl.weighted_return,
        key=getkey(),
    )
    assert solution.returns.shape == (3, 3, 2, 2)
    weighed = (solution.returns * np.array([1.0, -1.0])).sum(axis=-1).mean(axis=-1)
    for generation in (1, 2):
        replaced = solution.parents[generation] != np.arange(3)
        assert replaced.sum() == 1
        assert replaced[weighed[generation - 1].argmin()]


def test_descriptors_are_kept_for_each_member_and_episode() -> None:
    def end(transitions: eqrl.Transition, mask: Array) -> Array:
        del mask
        return transitions.next_observation[-1, :2]

    assert train(None, descriptor=end).descriptors.shape == (3, 3, 2, 2)


def test_the_callback_sees_every_generation() -> None:
    seen = []
    train(None, callback=lambda generation, solution: seen.append(generation))
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("name", ["TD3", "Normalized(SAC)", "REDQ"])
def test_other_agents_need_no_code_of_their_own(name: str) -> None:
    solution = train(None, agent=ALL_AGENTS[name])
    assert np.all(np.isfinite(solution.returns))


def test_members_and_the_best_can_be_taken_out(
    solution: eqrl.PopulationSolution,
) -> None:
    means = jnp.asarray(solution.returns[-1].mean(axis=1))
    chosen = eqrl.best(solution.states, means)
    expected = eqrl.member(solution.states, int(means.argmax()))
    assert eqx.tree_equal(chosen, expected)
    assert jax.tree.structure(chosen) == jax.tree.structure(
        AGENT.init(ENV.spec, key=jr.key(0))
    )


def test_a_vector_reward_needs_a_score() -> None:
    with pytest.raises(ValueError, match="`score` is needed"):
        train(None, env=Clock(reward_size=2))


def test_a_stack_of_another_size_is_refused(getkey: GetKey) -> None:
    agents = PBT.init(AGENT, 4, key=getkey())
    with pytest.raises(ValueError, match="stack of `size=3`"):
        train(None, agent=agents)
