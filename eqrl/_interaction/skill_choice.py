import dataclasses
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._agents import AbstractAgent
from .._pytree.control_flow import filter_while_loop
from .._pytree.fields import check_integer, check_range, strong_integer
from .._pytree.stack import take_element
from .._types.custom_types import EnvState, Extras, Memory, State
from .._types.data import EnvSpec
from ..envs import AbstractEnv, Outcome
from .actors import Actors, advance


class SkillChoiceState(eqx.Module, Generic[EnvState]):
    """The state of an environment, and what a skill sees of it next."""

    inner: EnvState
    observation: Float[Array, " obs"]


SkillChoiceState.__init__.__doc__ = """**Arguments:**

- `inner`: the state of the environment that skills act in.
- `observation`: of that state.
"""


class SkillChoice(
    AbstractEnv[SkillChoiceState[EnvState]], Generic[EnvState, State, Memory, Extras]
):
    """An environment whose action is which of a number of skills to run for a while.

    A step runs the skill that the largest element of the action names, greedily and
    with a memory that begins afresh, for `num_steps` steps, or fewer where the episode
    ends. Its reward is the sum of theirs, without a discount. All else is as after the
    last of them. So any agent can learn which skill to use when, and one that needs no
    learning can try each skill by `step` and take the best.

    The action has as many elements as there are skills in the stack; those from the
    `num_skills`-th on count for nothing. A one-hot vector names its skill. `num_skills`
    is a leaf: where skills are learnt one after another into a stack that is long
    enough, the next one compiles nothing.
    """

    env: AbstractEnv[EnvState]
    agent: AbstractAgent[State, Memory, Extras]
    states: State
    num_skills: int | Int[Array, ""] = eqx.field(converter=strong_integer)
    num_steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        size = _stack_size(self.states)
        check_range("num_skills", self.num_skills, low=1, high=size)
        check_integer("num_steps", self.num_steps, least=1)
        self._check_action()

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
        learnt = jnp.arange(action.shape[0]) < self.num_skills
        skill = take_element(
            self.states, jnp.argmax(jnp.where(learnt, action, -jnp.inf))
        )
        zero = jnp.zeros((), int)
        reward_size = self.env.spec.reward_size
        actor = Actors(
            env_state=state.inner,
            observation=state.observation,
            memory=self.agent.begin(skill, self.env.spec, index=zero, key=begin_key),
            timestep=zero,
            episode_return=jnp.zeros(() if reward_size is None else (reward_size,)),
        )

        def going_on(carry: _Carry) -> Bool[Array, ""]:
            actor, terminated, truncated = carry
            return (actor.timestep < self.num_steps) & ~(terminated | truncated)

        def step(carry: _Carry) -> _Carry:
            actor, _, _ = carry
            actor, transition = advance(
                self.agent,
                skill,
                self.env,
                actor,
                mode="greedy",
                key=jr.fold_in(step_key, actor.timestep),
            )
            return actor, transition.terminated, transition.truncated

        no = jnp.zeros((), bool)
        actor, terminated, truncated = filter_while_loop(
            going_on, step, (actor, no, no)
        )
        outcome = Outcome(
            observation=actor.observation,
            reward=actor.episode_return,
            terminated=terminated,
            truncated=truncated,
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

- `env`: where the skills act.
- `agent`: who acts.
- `states`: what the agent learnt as each of the skills: its state, every array of it
    with a leading axis `skills`.
- `num_skills`: how many of them can be chosen, the first ones; 1 to all.
- `num_steps`: how long a skill runs, at least 1.
"""

_Carry = tuple[Actors[Any, Any], Bool[Array, ""], Bool[Array, ""]]


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
