"""The types that a static type checker infers for what the library returns.

It is checked by the session `typecheck` and never run.
"""

from typing import Any, assert_type

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float

import eqrl
from eqrl import nn

from .project.agent import Imitator, ImitatorState
from .project.boat import Boat, BoatState
from .project.reward import Rare, RareState


KEY = jr.key(0)
ENV = Boat()
TRAINER = eqrl.Trainer()

Curious = eqrl.IntrinsicState[ImitatorState, RareState]
Skilled = eqrl.IntrinsicState[eqrl.SACState, eqrl.DiscriminatorState]
Learned = eqrl.IntrinsicState[eqrl.SACState, eqrl.IncrementalState]


def training() -> None:
    solution = eqrl.train(eqrl.SAC(), ENV, TRAINER, num_steps=40, key=KEY)
    assert_type(solution, eqrl.Solution[eqrl.SACState, BoatState, None, None])
    assert_type(solution.state, eqrl.SACState)
    assert_type(solution.state.actor, nn.StochasticPolicy)
    assert_type(solution.state.critics, nn.CriticFunction)
    assert_type(solution.trainer_state.actors.env_state, BoatState)
    assert_type(
        solution.trainer_state, eqrl.TrainerState[eqrl.SACState, BoatState, None, None]
    )
    seeds = eqrl.train_seeds(
        Imitator(), ENV, TRAINER, num_seeds=2, num_steps=40, key=KEY
    )
    assert_type(seeds.state, ImitatorState)
    assert_type(eqrl.member(seeds.state, 0), ImitatorState)
    repeating = eqrl.train(eqrl.TAAC(), ENV, TRAINER, num_steps=40, key=KEY)
    assert_type(
        repeating,
        eqrl.Solution[eqrl.TAACState, BoatState, eqrl.TAACMemory, eqrl.TAACExtras],
    )
    assert_type(repeating.state.critics, nn.CriticFunction)
    stored = eqrl.stored_transitions(repeating)
    learned = eqrl.train_offline(eqrl.SAC(), stored, ENV.spec, num_updates=1, key=KEY)
    assert_type(learned, eqrl.OfflineSolution[eqrl.SACState])
    choosing = eqrl.DiscreteSAC().init(ENV.spec, key=KEY)
    assert_type(choosing.actor, nn.ChoiceFunction)
    assert_type(choosing.critics, nn.ActionValueFunction)
    assert_type(eqrl.TD3().init(ENV.spec, key=KEY).actor, nn.Actor)
    assert_type(eqrl.PPO().init(ENV.spec, key=KEY).critic, nn.ValueFunction)
    assert_type(eqrl.DQN().init(ENV.spec, key=KEY).network, nn.ActionValueFunction)
    assert_type(eqrl.PQN().init(ENV.spec, key=KEY).network, nn.ActionValueFunction)


def trainer_in_steps() -> None:
    state, counts = TRAINER.init(Imitator(), ENV, key=KEY)
    assert_type(state, eqrl.TrainerState[ImitatorState, BoatState, None, None])
    assert_type(counts, eqrl.Counts)
    assert_type(state.agent, ImitatorState)


def runs() -> None:
    loaded = eqrl.load_run("mine", agent=Imitator(), env=ENV)
    assert_type(loaded, tuple[Imitator, ImitatorState, Boat])


def wrappers() -> None:
    curious = eqrl.Intrinsic(Imitator(), Rare())
    assert_type(curious, eqrl.Intrinsic[ImitatorState, RareState, None, None])
    assert_type(curious.init(ENV.spec, key=KEY), Curious)
    normalized = eqrl.Normalized(curious)
    assert_type(normalized, eqrl.Normalized[Curious, None, None])
    state = normalized.init(ENV.spec, key=KEY)
    assert_type(state, eqrl.NormalizedState[Curious])
    assert_type(state.agent.reward.counts, Array)
    assert_type(eqrl.unwrap(normalized, Imitator), Imitator)
    assert_type(eqrl.unwrap(normalized, Rare), Rare)
    repeating = eqrl.Normalized(eqrl.TAAC())
    assert_type(
        repeating,
        eqrl.Normalized[eqrl.TAACState, eqrl.TAACMemory, eqrl.TAACExtras],
    )


def skills() -> None:
    agent = eqrl.diayn(eqrl.SAC(), 3)
    assert_type(
        agent,
        eqrl.Intrinsic[
            eqrl.SACState,
            eqrl.DiscriminatorState,
            eqrl.SkillMemory[None],
            eqrl.SkillExtras[None],
        ],
    )
    solution = eqrl.train(agent, ENV, TRAINER, num_steps=40, key=KEY)
    assert_type(solution.state, Skilled)
    assert_type(solution.state.reward.network, nn.SkillDiscriminator)
    fixed, state = eqrl.fix_skill(agent, solution.state, jnp.zeros(3))
    assert_type(fixed, eqrl.AbstractAgent[eqrl.SACState, None, None])
    assert_type(state, eqrl.SACState)
    twice = eqrl.Intrinsic(agent, eqrl.RND())
    begun = twice.init(ENV.spec, key=KEY)
    # Which of the two intrinsic rewards has the skills cannot be seen from its type.
    assert_type(eqrl.fix_skill(twice, begun, jnp.zeros(3))[1], Any)
    evaluation = eqrl.evaluate_skills(
        agent, solution.state, ENV, num_episodes=2, key=KEY
    )
    assert_type(evaluation, eqrl.SkillEvaluation)
    assert_type(evaluation.accuracy, Array)


def skills_one_after_another() -> None:
    agent = eqrl.Intrinsic(eqrl.SAC(), eqrl.Incremental())
    assert_type(agent.init(ENV.spec, key=KEY), Learned)
    library = eqrl.learn_skills(
        agent, ENV, TRAINER, num_skills=2, num_steps=40, key=KEY
    )
    assert_type(library, eqrl.Skills[eqrl.SACState])
    first, state = eqrl.pick_skill(agent, library, 0)
    assert_type(first, eqrl.AbstractAgent[eqrl.SACState, None, None])
    assert_type(state, eqrl.SACState)
    assert_type(
        eqrl.load_skills("library", agent, ENV, TRAINER), eqrl.Skills[eqrl.SACState]
    )
    assert_type(eqrl.load_skill("library", agent, ENV, 0)[1], eqrl.SACState)
    trajectories = eqrl.play_skills(agent, library, ENV, num_episodes=2, key=KEY)
    assert_type(trajectories, eqrl.SkillTrajectories)


def describe(
    transitions: eqrl.Transition, mask: Bool[Array, " time"]
) -> dict[str, Float[Array, ""]]:
    return {"mean": jnp.mean(transitions.reward, where=mask)}


def evaluation(state: ImitatorState) -> None:
    plain = eqrl.evaluate(Imitator(), state, ENV, num_episodes=2, key=KEY)
    assert_type(plain, eqrl.Evaluation[None])
    assert_type(plain.returns, Array)
    described = eqrl.evaluate(
        Imitator(), state, ENV, num_episodes=2, key=KEY, descriptor=describe
    )
    assert_type(described.descriptors, dict[str, Array])
    transitions, mask = eqrl.rollout(Imitator(), state, ENV, num_episodes=2, key=KEY)
    assert_type(transitions, eqrl.Transition[None])
    assert_type(mask, Array)


def score(
    agent: Imitator, state: ImitatorState, evaluation: eqrl.Evaluation
) -> Float[Array, ""]:
    del agent, state
    return jnp.min(evaluation.returns)


def populations(pbt: eqrl.PBT) -> None:
    population = eqrl.train_population(
        Imitator(),
        ENV,
        TRAINER,
        pbt,
        size=3,
        num_generations=2,
        steps_per_generation=40,
        num_episodes=2,
        key=KEY,
        score=score,
        # It may be of another kind.
        evaluation_env=eqrl.envs.TimeLimit(ENV, 5),
    )
    eqrl.Evaluations(Imitator(), ENV, every=100, key=KEY, score=score, target=100)
    assert_type(population, eqrl.PopulationSolution[ImitatorState, Imitator])
    assert_type(population.states, ImitatorState)
    assert_type(population.agents, Imitator)
    assert_type(eqrl.best(population), tuple[Imitator, ImitatorState])
    assert_type(eqrl.best(population.agents, population.scores[-1]), Imitator)
    assert_type(pbt.init(Imitator(), 3, key=KEY), Imitator)
    assert_type(eqrl.member(population.states, 0), ImitatorState)


def networks() -> None:
    assert_type(nn.Gaussian()(4, 2, key=KEY), nn.GaussianPolicy)
    assert_type(nn.Deterministic()(4, 2, key=KEY), nn.DeterministicPolicy)
    assert_type(nn.Critic()(4, 2, key=KEY), nn.StateActionValue)
    assert_type(nn.Critic()(4, 2, reward_size=3, key=KEY), nn.StateActionValues)
    assert_type(nn.Value()(4, key=KEY), nn.StateValue)
    assert_type(nn.Choice()(4, 2, key=KEY), nn.ChoicePolicy)


def factories() -> None:
    # What the library makes fits wherever it is asked for.
    actor: nn.MakeActor = nn.Deterministic()
    policy: nn.MakePolicy = nn.Gaussian()
    likelihoods: list[nn.MakeLikelihoodPolicy] = [nn.Normal(), nn.Choice()]
    critic: nn.MakeCritic = nn.Critic()
    trajectory_critic: nn.MakeTrajectoryCritic = nn.Critic()
    discriminator: nn.MakeDiscriminator = nn.CategoricalDiscriminator()
    print(actor, policy, likelihoods, critic, trajectory_critic, discriminator)
    eqrl.PPO(make_actor=nn.Choice())
    eqrl.DQN(make_network=nn.ActionValues(dueling=True))
    eqrl.SAC(make_critic=lambda observation, action, key: nn.Critic()(1, 1, key=key))


def without_type_arguments(
    solution: eqrl.Solution,
    state: eqrl.TrainerState,
    transition: eqrl.Transition,
    skills: eqrl.Skills,
    agent: eqrl.AbstractAgent,
    population: eqrl.PopulationSolution,
    evaluation: eqrl.Evaluation,
    reward: eqrl.AbstractReward,
    env: eqrl.envs.AbstractEnv,
) -> None:
    # In strict mode too.
    assert_type(solution, eqrl.Solution[Any, Any, Any, Any])
    assert_type(state, eqrl.TrainerState[Any, Any, Any, Any])
    assert_type(transition, eqrl.Transition[Any])
    assert_type(skills, eqrl.Skills[Any])
    assert_type(agent, eqrl.AbstractAgent[Any, Any, Any])
    assert_type(population, eqrl.PopulationSolution[Any, Any])
    assert_type(evaluation, eqrl.Evaluation[Any])
    assert_type(reward, eqrl.AbstractReward[Any, Any])
    assert_type(env, eqrl.envs.AbstractEnv[Any])
