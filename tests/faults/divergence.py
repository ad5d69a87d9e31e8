"""Trains every agent with rates, rewards and networks that no training survives.

Run as `python -m tests.faults.divergence`: each agent of the tests, alone, from several
seeds and as a population, with learning rates of 1e3 and 1e30, with rewards of 1e30,
and from networks that hold nan. Each call must end with a state that is finite, or
raise an error that says what was not and holds a finite state. Prints how often each
was so, and exits with 1 after anything else.
"""

import argparse
import collections
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl._agents.base import AnyAgent
from eqrl.envs import AbstractEnv, Outcome
from eqrl.envs._base import AnyEnv

from ..agents_under_test import (
    ALL_AGENTS,
    all_finite,
    env_of,
    trainer_of,
    with_rates,
)


FINITE, RAISED, REFUSED = "finite", "raised, finite", "refused"
NOT_FINITE, NOT_KEPT, SILENT = "SUCCESS, NOT FINITE", "ERROR, NOT FINITE", "TAKEN"

TRAINER = eqrl.Trainer(batch_size=4, warmup_steps=20, capacity=100)
_COMMON: dict[str, Any] = {"num_steps": 120, "log_every": 30, "key": jr.key(0)}


class Loud(AbstractEnv[Any]):
    """An environment whose rewards are multiplied."""

    env: AnyEnv
    scale: Float[Array, ""]

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        return self.env.reset(key=key)

    def step(
        self, state: Any, action: Any, *, key: PRNGKeyArray
    ) -> tuple[Any, Outcome]:
        state, outcome = self.env.step(state, action, key=key)
        louder = eqx.tree_at(lambda x: x.reward, outcome, outcome.reward * self.scale)
        return state, louder

    def state_descriptor(self, state: Any) -> Any:
        return self.env.state_descriptor(state)


def train_one(agent: AnyAgent, env: Loud, initial: Any) -> Any:
    return eqrl.train(
        agent, env, trainer_of(agent, TRAINER), initial=initial, **_COMMON
    )


def train_several(agent: AnyAgent, env: Loud, initial: Any) -> Any:
    return eqrl.train_seeds(
        agent, env, trainer_of(agent, TRAINER), num_seeds=2, initial=initial, **_COMMON
    )


def train_members(agent: AnyAgent, env: Loud, initial: Any) -> Any:
    return eqrl.train_population(
        agent,
        env,
        trainer_of(agent, TRAINER),
        None,
        size=2,
        num_generations=2,
        steps_per_generation=60,
        num_episodes=1,
        key=jr.key(0),
        initial=initial,
    )


KINDS: dict[str, Callable[[AnyAgent, Loud, Any], Any]] = {
    "single": train_one,
    "seeds": train_several,
    "population": train_members,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", choices=ALL_AGENTS, default=ALL_AGENTS)
    options = parser.parse_args()
    found: collections.Counter[str] = collections.Counter()
    for name in options.agents:
        for kind, train in KINDS.items():
            outcomes = attack(ALL_AGENTS[name], train)
            found.update(outcomes.values())
            print(f"{name:30} {kind:10} {outcomes}", flush=True)
            # A process may have so many memory maps, and programs take them.
            jax.clear_caches()
    print(dict(found))
    return 1 if found.keys() & {NOT_FINITE, NOT_KEPT, SILENT} else 0


def attack(agent: AnyAgent, train: Callable[..., Any]) -> dict[str, str]:
    """What became of each attack."""
    env = env_of(agent)
    quiet, loud = Loud(env, jnp.asarray(1.0)), Loud(env, jnp.asarray(1e30))
    healthy = train(agent, quiet, None)
    outcomes = {
        "1e3": _outcome(train, with_rates(agent, 1e3), quiet, None),
        "1e30": _outcome(train, with_rates(agent, 1e30), quiet, None),
        "rewards": _outcome(train, agent, loud, None),
    }
    try:
        train(agent, quiet, _spoiled(healthy))
    except ValueError as error:
        outcomes["nan"] = REFUSED if "nan" in str(error) else SILENT
    else:
        outcomes["nan"] = SILENT
    return outcomes


def _outcome(
    train: Callable[..., Any], agent: AnyAgent, env: Loud, initial: Any
) -> str:
    try:
        solution = train(agent, env, initial)
    except eqrl.NonFiniteError as error:
        return RAISED if all_finite(_state_of(error.solution)) else NOT_KEPT
    return FINITE if all_finite(_state_of(solution)) else NOT_FINITE


def _state_of(solution: Any) -> Any:
    if isinstance(solution, eqrl.PopulationSolution):
        return solution.states
    return solution.state


def _spoiled(solution: Any) -> Any:
    """The solution, with nan in its agent's state."""
    return eqx.tree_at(
        _state_of,
        solution,
        jax.tree.map(
            lambda x: x * jnp.nan if eqx.is_inexact_array(x) else x,
            _state_of(solution),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
