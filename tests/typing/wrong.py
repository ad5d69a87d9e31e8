"""Wrong programs, each with the errors that static type checkers must give.

It is checked by the session `typecheck`, to which an error that is no longer given is
an error, and never run.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl import nn

from .project.agent import Imitator, ImitatorState
from .project.boat import Boat, BoatState


KEY = jr.key(0)
ENV = Boat()
POINT = eqrl.envs.Point()
TRAINER = eqrl.Trainer()
AGENT = Imitator()


def arguments_of_train() -> None:
    eqrl.train(ENV, AGENT, TRAINER, num_steps=40, key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.train(AGENT, Boat, TRAINER, num_steps=40, key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.train(AGENT, ENV, TRAINER, num_steps=40)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    eqrl.train(AGENT, ENV, TRAINER, num_steps=4e1, key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    at_point = eqrl.train(AGENT, POINT, TRAINER, num_steps=40, key=KEY)
    eqrl.train(AGENT, ENV, TRAINER, num_steps=40, key=KEY, initial=at_point)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]

    def report(step: int, metrics: dict[str, Any]) -> None:
        print(step, metrics)

    eqrl.train(AGENT, ENV, TRAINER, num_steps=40, key=KEY, callback=report)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def hyperparameters() -> None:
    eqrl.SAC(actor_lr="3e-4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.SAC(learning_rate=3e-4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    eqrl.LogUniform()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    eqrl.Uniform(1.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    eqrl.PBT(where=lambda agent: (agent.lr,), priors=((1e-4, 1e-2),))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class OfObservation(eqx.Module):
    """A critic that looks at no action."""

    network: nn.MLP

    def __call__(self, observation: Float[Array, " obs"]) -> Float[Array, ""]:
        return self.network(observation)[0]


def make_of_observation(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> OfObservation:
    del action_size
    return OfObservation(nn.MLP(observation_size, 1, (8,), key=key))


def make_of_one_size(observation_size: int, *, key: PRNGKeyArray) -> nn.GaussianPolicy:
    return nn.Gaussian()(observation_size, 1, key=key)


def factories() -> None:
    eqrl.SAC(make_actor=nn.Gaussian)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.SAC(make_actor=nn.Deterministic())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.SAC(make_actor=make_of_one_size)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.SAC(make_critic=make_of_observation)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.SAC(make_critic=nn.Value())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.SAC(make_optimizer=optax.adam(1e-3))  # pyright: ignore[reportArgumentType]
    eqrl.TD3(make_actor=nn.Gaussian())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.TAAC(make_critic=make_of_observation)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.PPO(make_actor=nn.Gaussian())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.DQN(make_network=nn.Choice())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.DiscreteSAC(make_critic=nn.Critic())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.Discriminator(8, make_network=nn.Gaussian())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def states(solution: eqrl.Solution[ImitatorState, BoatState, None, None]) -> None:
    eqrl.evaluate(AGENT, solution, ENV, num_episodes=2, key=KEY)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    eqrl.evaluate(eqrl.SAC(), solution.state, ENV, num_episodes=2, key=KEY)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    eqrl.rollout(
        AGENT,
        solution.state,
        ENV,
        num_episodes=2,
        mode="deterministic",  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        key=KEY,
    )
    normalized = eqrl.Normalized(AGENT)
    state = normalized.init(ENV.spec, key=KEY)
    eqrl.evaluate(AGENT, state, ENV, num_episodes=2, key=KEY)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    eqrl.rollout(AGENT, state, ENV, num_episodes=2, key=KEY)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    AGENT.act(solution.state, None, [0.0, 1.0], mode="greedy", key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(solution.agent, solution.state.critic)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    sac = eqrl.SAC().init(ENV.spec, key=KEY)
    sac.critics(jnp.zeros(4))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    print(eqrl.unwrap(normalized, eqrl.SAC).sharpness)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def skills() -> None:
    sac = eqrl.SAC()
    eqrl.SkillConditioned(sac, eqrl.OneHotSkills)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.diayn(sac, "8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.Intrinsic(sac, eqrl.Discriminator(8))  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    eqrl.Intrinsic(eqrl.Discriminator(8), sac)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    skilled = eqrl.diayn(sac, 3)
    state = skilled.init(ENV.spec, key=KEY)
    eqrl.fix_skill(skilled, state, 2)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    eqrl.fix_skill(skilled, state.agent, jnp.zeros(3))  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    eqrl.evaluate_skills(skilled, state.agent, ENV, num_episodes=2, key=KEY)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    eqrl.learn_skills(sac, ENV, TRAINER, num_skills=2, num_steps=40, key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.learn_skills(skilled, ENV, TRAINER, num_skills=2, num_steps=40, key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    step_by_step = eqrl.Intrinsic(AGENT, eqrl.Incremental())
    library = eqrl.learn_skills(
        eqrl.Intrinsic(sac, eqrl.Incremental()),
        ENV,
        TRAINER,
        num_skills=2,
        num_steps=40,
        key=KEY,
    )
    eqrl.pick_skill(step_by_step, library, 0)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]


def score_of_two(state: ImitatorState, evaluation: eqrl.Evaluation) -> Array:
    del state
    return evaluation.returns.mean()


def score_of_sac(
    agent: eqrl.SAC, state: ImitatorState, evaluation: eqrl.Evaluation
) -> Array:
    del agent, state
    return evaluation.returns.mean()


def report_sac(
    step: int, metrics: dict[str, Any], solution: eqrl.PopulationSolution[eqrl.SACState]
) -> None:
    print(step, metrics, solution)


def populations(pbt: eqrl.PBT) -> None:
    population = eqrl.train_population(
        AGENT,
        ENV,
        TRAINER,
        pbt,
        size=4.0,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        num_generations=2,
        steps_per_generation=40,
        num_episodes=2,
        key=KEY,
    )
    print(population.agents.learning_rate, population.states.critic)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    eqrl.train_population(
        AGENT,
        ENV,
        TRAINER,
        pbt,
        size=4,
        num_generations=2,
        steps_per_generation=40,
        num_episodes=2,
        key=KEY,
        score=score_of_two,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    )
    eqrl.train_population(
        AGENT,
        ENV,
        TRAINER,
        pbt,
        size=4,
        num_generations=2,
        steps_per_generation=40,
        num_episodes=2,
        key=KEY,
        score=score_of_sac,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        callback=report_sac,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    )
    print(eqrl.best(population).actor)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def critics() -> None:
    vector = nn.Critic()(4, 2, reward_size=3, key=KEY)
    scalar: nn.StateActionValue = vector  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(scalar)


def batches(batch: eqrl.Transition[None]) -> None:
    agent = eqrl.TAAC()
    agent.update(agent.init(ENV.spec, key=KEY), batch, step=jnp.array(0), key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    eqrl.train_offline(agent, batch, ENV.spec, num_updates=1, key=KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]


class NoKey(eqrl.envs.AbstractEnv[BoatState]):
    """An environment whose methods differ, and one of which is forgotten."""

    @property
    def spec(self) -> eqrl.EnvSpec:
        return ENV.spec

    def reset(self, *, rng: PRNGKeyArray) -> tuple[BoatState, Float[Array, " obs"]]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return ENV.reset(key=rng)

    def step(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state: BoatState, action: Float[Array, " act"]
    ) -> tuple[BoatState, eqrl.envs.Outcome]:
        return ENV.step(state, action, key=KEY)


def environments() -> None:
    NoKey()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    eqrl.envs.Outcome(
        observation=jnp.zeros(2),
        reward=0.5,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        terminated=jnp.array(False),
        truncated=jnp.array(False),
    )


class WrongAgent(eqrl.AbstractMarkovAgent[ImitatorState]):
    """An agent whose policy gives arrays, and whose metrics are numbers."""

    def init(self, spec: eqrl.EnvSpec, *, rng: PRNGKeyArray) -> ImitatorState:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return AGENT.init(spec, key=rng)

    def policy(self, state: ImitatorState) -> Float[Array, " act"]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return state.actor(jnp.zeros(4)).mode()

    def update(
        self,
        state: ImitatorState,
        batch: eqrl.Transition[None],
        *,
        step: Array,
        key: PRNGKeyArray,
    ) -> tuple[ImitatorState, eqrl.Metrics]:
        return state, {"loss": 0.5}  # type: ignore[dict-item]  # pyright: ignore[reportReturnType]
