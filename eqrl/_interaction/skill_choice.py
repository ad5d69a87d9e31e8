import dataclasses
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents import AbstractAgent
from .._pytree.fields import (
    check_fields,
    check_range,
    static_integer,
    strong_integer,
)
from .._pytree.stack import take_element
from .._types.custom_types import EnvState, Extras, Memory, State
from .._types.data import EnvSpec
from ..envs import AbstractEnv, AbstractEnvWrapper, Outcome
from ..envs._base import AnyEnv
from .actors import Actors
from .rollout import play_until_over


class SkillChoiceState(eqx.Module, Generic[EnvState]):
    """State of `SkillChoice`: that of its environment and the current observation."""

    inner: EnvState
    observation: Float[Array, " obs"]


SkillChoiceState.__init__.__doc__ = """**Arguments:**

- `inner`: the state of the environment that the skills act in.
- `observation`: of that state.
"""


class SkillChoice(
    AbstractEnvWrapper[SkillChoiceState[EnvState]],
    Generic[EnvState, State, Memory, Extras],
):
    """An environment whose actions choose among skills, each run for several steps.

    A step runs the skill of the largest element of the action, greedily and with a
    fresh memory, for `num_steps` steps, or fewer if the episode ends. Its reward is the
    undiscounted sum of their rewards; the rest of the outcome is that of the last of
    them. So any agent can learn when to use which skill, and one that does not learn
    can try each skill by `step` and take the best.

    The action has as many elements as there are skills in the stack; those from the
    `num_skills`-th on are ignored. A one-hot vector chooses its skill. `num_skills` is
    a leaf: if skills are learned one after another into a stack that is long enough,
    the next one compiles nothing.
    """

    env: AbstractEnv[EnvState]
    agent: AbstractAgent[State, Memory, Extras]
    states: State
    num_skills: int | Int[Array, ""] = eqx.field(converter=strong_integer)
    num_steps: int = static_integer(least=1)

    def __check_init__(self) -> None:
        size = _stack_size(self.states)
        check_range("num_skills", self.num_skills, low=1, high=size)
        check_fields(self)
        self._check_action()

    @property
    def inner(self) -> AnyEnv:
        return self.env

    def inner_state(self, state: SkillChoiceState[EnvState]) -> EnvState:
        return state.inner

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        max_steps = spec.max_steps
        if max_steps is not None:
            # Rounded up: the last choice may be cut short.
            max_steps = -(-max_steps // self.num_steps)
        return dataclasses.replace(
            spec, action_size=_stack_size(self.states), max_steps=max_steps
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[SkillChoiceState[EnvState], Float[Array, " obs"]]:
        inner, observation = self.env.reset(key=key)
        return SkillChoiceState(inner=inner, observation=observation), observation

    def step(
        self,
        state: SkillChoiceState[EnvState],
        action: Float[Array, " act"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[SkillChoiceState[EnvState], Outcome]:
        begin_key, step_key = jr.split(key)
        exists = jnp.arange(action.shape[0]) < self.num_skills
        chosen = jnp.argmax(jnp.where(exists, action, -jnp.inf))
        skill = take_element(self.states, chosen)
        zero = jnp.zeros((), int)
        reward_size = self.env.spec.reward_size
        actor = Actors(
            env_state=state.inner,
            observation=state.observation,
            memory=self.agent.begin(skill, self.env.spec, index=zero, key=begin_key),
            timestep=zero,
            episode_return=jnp.zeros(() if reward_size is None else (reward_size,)),
        )

        episode = play_until_over(
            self.agent,
            skill,
            self.env,
            actor,
            max_steps=self.num_steps,
            mode="greedy",
            key=step_key,
        )
        actor = episode.actors
        outcome = Outcome(
            observation=actor.observation,
            reward=episode.returns,
            terminated=episode.terminated,
            truncated=episode.truncated,
        )
        after = SkillChoiceState(inner=actor.env_state, observation=actor.observation)
        return after, outcome

    def state_descriptor(
        self, state: SkillChoiceState[EnvState]
    ) -> Float[Array, " descriptor"] | None:
        return self.env.state_descriptor(state.inner)

    def _check_action(self) -> None:
        spec = self.env.spec

        def act(
            states: State, observation: Float[Array, " obs"]
        ) -> Float[Array, "..."]:
            state, key = take_element(states, 0), jr.key(0)
            begin_key, act_key = jr.split(key)
            zero = jnp.zeros((), int)
            memory = self.agent.begin(state, spec, index=zero, key=begin_key)
            action, _, _ = self.agent.act(
                state, memory, observation, mode="greedy", key=act_key
            )
            return action

        observation = jax.ShapeDtypeStruct(
            (spec.observation_size,), jnp.result_type(float)
        )
        shape = eqx.filter_eval_shape(act, self.states, observation).shape
        if shape != (spec.action_size,):
            raise ValueError(
                f"`agent` acts by actions of shape {shape}, but `env.spec.action_size="
                f"{spec.action_size}` asks for {(spec.action_size,)}."
            )


SkillChoice.__init__.__doc__ = """**Arguments:**

- `env`: the environment that the skills act in.
- `agent`: the agent of all skills.
- `states`: the agent's state for each skill, every array with a leading axis `skills`.
- `num_skills`: how many of them, from the first, can be chosen; 1 to all.
- `num_steps`: number of steps that a skill runs, at least 1.
"""


def _stack_size(states: Any) -> int:
    shapes = {x.shape[:1] for x in jax.tree.leaves(states) if eqx.is_array(x)}
    if len(shapes) != 1 or shapes == {()}:
        raise ValueError(
            "Every array in `states` must have one leading axis for the skills, as "
            "`equinox.filter_vmap` makes it; the leading axes here are "
            f"{sorted(shapes)}."
        )
    ((size,),) = shapes
    return size
