"""Trains a population of the agent, and takes the best."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl

from .agent import Imitator, ImitatorState
from .boat import Boat, BoatState
from .train import TRAINER


MemberState = eqrl.TrainerState[ImitatorState, BoatState, None, None]


def tuned(agent: Imitator) -> tuple[eqrl.FloatLike, ...]:
    """The hyperparameters that the population varies."""
    return agent.lr, agent.discount


PBT = eqrl.PBT(
    where=tuned,
    priors=(eqrl.LogUniform(1e-4, 1e-2), eqrl.OneMinus(eqrl.LogUniform(1e-3, 0.1))),
    num_replaced=1,
    num_elite=1,
)


def worst_return(
    agent: Imitator, state: ImitatorState, evaluation: eqrl.Evaluation
) -> Float[Array, ""]:
    """Ranks members by their worst episode."""
    del agent, state
    return jnp.min(evaluation.returns)


def report(
    step: int,
    metrics: dict[str, Any],
    population: eqrl.PopulationSolution[ImitatorState],
) -> None:
    """Prints how a generation did."""
    print(
        step, metrics["score"], population.returns[-1].mean(), population.states.actor
    )


def train_best() -> tuple[Imitator, ImitatorState]:
    """The best member of a small population."""
    population = eqrl.train_population(
        Imitator(),
        Boat(),
        TRAINER,
        PBT,
        size=3,
        num_generations=1,
        steps_per_generation=40,
        num_episodes=2,
        key=jr.key(0),
        score=worst_return,
        callback=report,
    )
    print(population.agents.lr, eqrl.member(population.states, 0).actor)
    return eqrl.best(population)


def exploit_by_hand() -> eqrl.Stacked[Imitator, "population"]:
    """One round of replacement of members that have not trained."""
    agents = PBT.init(Imitator(), 3, key=jr.key(0))

    def init(agent: Imitator, key: PRNGKeyArray) -> tuple[MemberState, eqrl.Counts]:
        return TRAINER.init(agent, Boat(), key=key)

    states: eqrl.Stacked[MemberState, "population"]
    states, _ = eqx.filter_vmap(init, out_axes=(eqx.if_array(0), None))(
        agents, jr.split(jr.key(1), 3)
    )
    agents, states, parents = PBT.exploit(
        agents, states, jnp.arange(3.0), key=jr.key(2)
    )
    print(states.agent.actor, parents)
    return agents


def main() -> None:
    agent, state = train_best()
    print(agent.lr, state.actor, exploit_by_hand().lr)
    seeds = eqrl.train_seeds(
        agent, Boat(), TRAINER, num_seeds=2, num_steps=40, key=jr.key(3)
    )
    print(eqrl.member(seeds.state, 1).critics)


if __name__ == "__main__":
    main()
