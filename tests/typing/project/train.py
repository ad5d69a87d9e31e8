"""Trains the agent on the boat's reward, on rare places, and with skills."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float

import eqrl

from .agent import Imitator, ImitatorState
from .boat import Boat, BoatState
from .reward import Rare


TRAINER = eqrl.Trainer(num_envs=2, batch_size=8, capacity=200, warmup_steps=20)

Trained = eqrl.Solution[ImitatorState, BoatState, None, None]


def last_place(
    transitions: eqrl.Transition, mask: Bool[Array, " time"]
) -> Float[Array, " 2"]:
    """Where an episode ended."""
    places = transitions.next_state_descriptor
    assert places is not None
    return places[jnp.sum(mask) - 1]


def report(step: int, metrics: dict[str, Any], solution: Trained) -> None:
    """Prints how training goes on."""
    failed = bool(solution.trainer_state.failed)
    print(step, metrics["episode_return"], failed)


def train_plainly(agent: Imitator, env: Boat) -> Trained:
    """Trains on the reward of the boat, and goes on once more."""
    solution = eqrl.train(
        agent, env, TRAINER, num_steps=40, key=jr.key(0), callback=report
    )
    return eqrl.train(
        agent, env, TRAINER, num_steps=40, key=jr.key(1), initial=solution
    )


def where_it_ends(agent: Imitator, solution: Trained) -> Float[Array, "episodes 2"]:
    """The last places of some episodes."""
    evaluation = eqrl.evaluate(
        agent,
        solution.state,
        Boat(),
        num_episodes=2,
        key=jr.key(2),
        descriptor=last_place,
    )
    return evaluation.descriptors


def train_curiously() -> Float[Array, "rows columns"]:
    """What an agent that normalizes its observations has seen of the lake."""
    agent = eqrl.Normalized(eqrl.Intrinsic(Imitator(), Rare(scale=0.5)), clip=5.0)
    solution = eqrl.train(agent, Boat(), TRAINER, num_steps=40, key=jr.key(0))
    print(eqrl.unwrap(agent, Imitator).lr, eqrl.unwrap(agent, Rare).scale)
    print(solution.state.agent.agent.actor)
    return solution.state.agent.reward.counts


def train_skills() -> Float[Array, ""]:
    """How well one of the skills does what the boat is for."""
    env = Boat()
    agent = eqrl.diayn(Imitator(), 3)
    solution = eqrl.train(agent, env, TRAINER, num_steps=40, key=jr.key(0))
    skills = eqrl.evaluate_skills(
        agent, solution.state, env, num_episodes=2, key=jr.key(1)
    )
    print(skills.accuracy, solution.state.reward.network)
    fixed, state = eqrl.fix_skill(agent, solution.state, jax.nn.one_hot(1, 3))
    returns = eqrl.evaluate(fixed, state, env, num_episodes=2, key=jr.key(2)).returns
    print(state.actor)
    return jnp.mean(returns)


def main() -> None:
    agent = Imitator(lr=3e-3)
    solution = train_plainly(agent, Boat(current=0.05))
    print(where_it_ends(agent, solution))
    print(train_curiously(), train_skills())


if __name__ == "__main__":
    main()
