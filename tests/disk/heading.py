"""An agent whose skills are easy to tell apart, and three of its skills."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl.envs import Point

from ..toy import Idle


class HeadingState(eqx.Module):
    """The direction of an agent, and how much it has seen."""

    direction: Float[Array, " act"]
    num_updates: Int[Array, ""]
    num_observed: Int[Array, ""]


class Heading(Idle):
    """Moves in a direction, which is drawn at first.

    Each update turns the direction a little, by more the more reward there is. Random
    actions are less than 0.1 in size, so they can be told apart.
    """

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> HeadingState:
        direction = jr.uniform(key, (spec.action_size,), minval=0.3, maxval=0.8)
        zero = jnp.zeros((), int)
        return HeadingState(
            direction=direction, num_updates=zero, num_observed=zero + 0
        )

    def act(
        self,
        state: HeadingState,
        memory: None,
        observation: Float[Array, " obs"],
        *,
        mode: eqrl.Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], None, None]:
        del memory, observation
        shape = state.direction.shape
        if mode == "random":
            return jr.uniform(key, shape, minval=-0.1, maxval=0.1), None, None
        if mode == "greedy":
            return state.direction, None, None
        return state.direction + jr.uniform(key, shape, maxval=0.1), None, None

    def observe(
        self, state: HeadingState, transitions: eqrl.Transition[None]
    ) -> HeadingState:
        return HeadingState(
            direction=state.direction,
            num_updates=state.num_updates,
            num_observed=state.num_observed + transitions.reward.shape[0],
        )

    def update(
        self,
        state: HeadingState,
        batch: eqrl.Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[HeadingState, eqrl.Metrics]:
        turn = jnp.tanh(jnp.mean(batch.reward)) * jr.normal(key, state.direction.shape)
        state = HeadingState(
            direction=jnp.clip(state.direction + 0.01 * turn, 0.2, 0.9),
            num_updates=state.num_updates + 1,
            num_observed=state.num_observed,
        )
        return state, {"loss": jnp.mean(batch.reward), "update": step.astype(float)}


ENV = Point(max_steps=5)
# Of 2 environments with 12 rows each, so that the ring goes round.
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, capacity=24, warmup_steps=6)
AGENT = eqrl.Intrinsic(Heading(), eqrl.Incremental())
# A skill is 26 steps, 2 behind the last row and 4 before the end of an episode.
NUM_STEPS = 26


def learn(
    agent: eqrl.AbstractAgent[Any, Any, Any] = AGENT,
    env: Any = ENV,
    trainer: eqrl.Trainer = TRAINER,
    **options: Any,
) -> eqrl.Skills[Any]:
    """Learns three small skills."""
    defaults = {
        "num_skills": 3,
        "num_steps": NUM_STEPS,
        "num_collected_episodes": 2,
        "log_every": 8,
        "key": jr.key(0),
    }
    return eqrl.learn_skills(agent, env, trainer, **defaults | options)


class Recorder:
    """A callback that keeps a copy of its arguments, and counts compilations so far."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.skills: list[eqrl.Skills[Any]] = []
        self.num_compiled: list[int] = []
        self._compiled: list[str] = []

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[str]]:
        """Forgets what was compiled, and lists the names of what is, as it goes on."""

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            del duration_secs
            if event.startswith("/jax/core/compile"):
                self._compiled.append(f"{event} {kwargs.get('fun_name')}")

        jax.clear_caches()
        jax.monitoring.register_event_duration_secs_listener(listen)
        yield self._compiled
        jax.monitoring.unregister_event_duration_listener(listen)

    def __call__(
        self, step: int, row: dict[str, Any], skills: eqrl.Skills[Any]
    ) -> None:
        self.steps.append(step)
        self.rows.append(row)
        self.num_compiled.append(len(self._compiled))
        self.skills.append(eqrl.tree_copy(skills))


def training_of(skills: eqrl.Skills[Any]) -> eqrl.SkillTraining:
    """The training state of skills that can be resumed."""
    assert skills.training is not None
    return skills.training


def past_of(skills: eqrl.Skills[Any]) -> np.ndarray:
    """The past features, oldest first; `(points, 2)`."""
    past = training_of(skills).trainer_state.agent.reward.past
    return np.asarray(past.features[0, : int(past.counts[0])])
