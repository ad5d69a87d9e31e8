"""Tasks of reaching goals, and the view of them that skills without goals need."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

import eqrl
from eqrl._agents.base import AbstractViewWrapper, view_of
from eqrl.envs import AbstractEnv, AbstractEnvWrapper, Outcome


class GoalsState(eqx.Module):
    """State of `Goals`: the goal, and the steps of an episode so far."""

    inner: Any
    goal: Float[Array, " descriptor"]
    clock: Int[Array, ""]


class Goals(AbstractEnvWrapper[GoalsState]):
    """An environment that pays for reaching goals, which it draws around its state.

    The observation ends with the way to the goal, in units of `half_size`. A goal is
    drawn uniformly, at most `half_size` away in each direction, and reached within
    `radius`. Then the episode terminates or, if there are `steps_of_each`, the next
    goal follows at once and the time left for this one is lost; else it follows after
    so many steps.

    With `(7.5, 3.0, 2.5, 50)` and 200 steps of EnvPool's ant it is AntMultiGoals of
    METRA's paper, with `(100.0, 3.0, 10.0, None)` and its cheetah HalfCheetahGoal.
    """

    env: AbstractEnv[Any]
    half_size: float
    radius: float
    prize: float
    steps_of_each: int | None = eqx.field(static=True)

    @property
    def inner(self) -> AbstractEnv[Any]:
        return self.env

    def inner_state(self, state: GoalsState) -> Any:
        return state.inner

    @property
    def spec(self) -> eqrl.EnvSpec:
        spec = self.env.spec
        size = spec.state_descriptor_size
        assert size is not None and spec.max_steps is not None
        return eqrl.EnvSpec(
            spec.observation_size + size,
            action=spec.action,
            state_descriptor_size=size,
            max_steps=spec.max_steps,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[GoalsState, Float[Array, " obs"]]:
        env_key, goal_key = jr.split(key)
        inner, observation = self.env.reset(key=env_key)
        goal = self._drawn(inner, goal_key)
        state = GoalsState(inner, goal, jnp.zeros((), int))
        return state, self._seen(state, observation)

    def step(
        self, state: GoalsState, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[GoalsState, Outcome]:
        env_key, goal_key = jr.split(key)
        inner, outcome = self.env.step(state.inner, action, key=env_key)
        distance = jnp.linalg.norm(state.goal - self._position(inner))
        is_reached: Bool[Array, ""] = distance <= self.radius
        clock, goal = state.clock + 1, state.goal
        terminated, truncated = outcome.terminated, outcome.truncated
        if self.steps_of_each is None:
            terminated = terminated | is_reached
        else:
            each = self.steps_of_each
            clock = jnp.where(is_reached, -(-clock // each) * each, clock)
            goal = jnp.where(clock % each == 0, self._drawn(inner, goal_key), goal)
            assert self.env.spec.max_steps is not None
            truncated = (truncated | (clock >= self.env.spec.max_steps)) & ~terminated
        state = GoalsState(inner, goal, clock)
        return state, Outcome(
            observation=self._seen(state, outcome.observation),
            reward=jnp.where(is_reached, self.prize, 0.0),
            terminated=terminated,
            truncated=truncated & ~terminated,
        )

    def _position(self, inner: Any) -> Float[Array, " descriptor"]:
        position = self.env.state_descriptor(inner)
        assert position is not None
        return position

    def _drawn(self, inner: Any, key: PRNGKeyArray) -> Float[Array, " descriptor"]:
        position = self._position(inner)
        way = jr.uniform(key, position.shape, minval=-1, maxval=1)
        return position + self.half_size * way

    def _seen(
        self, state: GoalsState, observation: Float[Array, " inner"]
    ) -> Float[Array, " obs"]:
        way = (state.goal - self._position(state.inner)) / self.half_size
        return jnp.concatenate([observation, way])


class WithoutLast(AbstractViewWrapper[Any, Any, Any]):
    """An agent that does not see the last elements of observations, such as a goal."""

    agent: Any
    num_hidden: int = eqx.field(static=True)

    @property
    def inner(self) -> Any:
        return self.agent

    def inner_state(self, state: Any) -> Any:
        return state

    def inner_transitions(self, state: Any, transitions: Any) -> Any:
        return view_of(transitions, lambda x: self.inner_observation(state, x))

    def inner_spec(self, spec: eqrl.EnvSpec) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            spec.observation_size - self.num_hidden,
            action=spec.action,
            state_descriptor_size=spec.state_descriptor_size,
            max_steps=spec.max_steps,
        )

    def inner_observation(
        self, state: Any, observation: Float[Array, "*batch obs"]
    ) -> Float[Array, "*batch inner_obs"]:
        del state
        return observation[..., : -self.num_hidden]

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> Any:
        return self.agent.init(self.inner_spec(spec), key=key)

    def observe(self, state: Any, transitions: Any) -> Any:
        return self.agent.observe(state, self.inner_transitions(state, transitions))

    def update(
        self, state: Any, batch: Any, *, step: Int[Array, ""], key: PRNGKeyArray
    ) -> Any:
        inner_batch = self.inner_transitions(state, batch)
        return self.agent.update(state, inner_batch, step=step, key=key)
