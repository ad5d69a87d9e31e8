import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Generic, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.fields import check_fields, hyperparameter, static_integer
from ..._pytree.tree import Part, check_kept
from ..._rewards.base import (
    AbstractReward,
    AnyReward,
    StateDescriptor,
    Sum,
    after_update,
    check_rewards,
)
from ..._rewards.discriminator import Discriminator, DiscriminatorState
from ..._rewards.scaled import Scaled
from ..._rewards.smerl import SMERL
from ..._skills.prior import AbstractSkillPrior, SkillExtras, as_skill_prior
from ..._types.custom_types import (
    Extras,
    FloatLike,
    MakeOptimizer,
    Memory,
    Metrics,
    Observation,
    PyTree,
    RewardState,
    State,
)
from ..._types.data import EnvSpec, Transition, flatten_batch
from ...nn import MakeDiscriminator
from ..base import (
    AbstractAgent,
    AbstractViewWrapper,
    AbstractWrapper,
    AnyAgent,
    check_state,
    layers,
)
from ..on_policy import learn_in_minibatches
from .normalized import NormalizedReward
from .skills import SkillConditioned, SkillMemory, check_same_skills


class IntrinsicState(eqx.Module, Generic[State, RewardState]):
    """State of `Intrinsic`: the states of its agent and its reward."""

    agent: State
    reward: RewardState


IntrinsicState.__init__.__doc__ = """**Arguments:**

- `agent`: the state of the agent.
- `reward`: the state of the reward.
"""


class Intrinsic(
    AbstractViewWrapper[IntrinsicState[State, RewardState], Memory, Extras]
):
    """An agent that learns from an intrinsic reward, which is itself learned.

    Each batch is scored by the reward before its update, or after it with
    `score_after_update`; then the agent learns from the batch. The replay holds the
    environment's rewards, so a batch is always scored by the current reward. The agent
    sees a scalar reward, even if the environment's is a vector.

    The metrics are those of the agent and of the reward, and `intrinsic_reward`. If the
    name of an agent's metric is taken, as in an `Intrinsic` around another, it is
    prefixed with `inner_`.

    Around `CSF`, which uses no reward, it changes nothing. Around an `Intrinsic` that
    has no `environment_weight`, the agent does not learn from this one's reward: give
    that one a weight, or both rewards to one `Intrinsic`, in a `Sum`.

    Raises a `ValueError` if the skills of the reward differ from the agent's, and
    around a `NormalizedReward`, which would see only fresh transitions, without an
    intrinsic reward: put it around this wrapper instead.
    """

    agent: AbstractAgent[State, Memory, Extras]
    reward: AbstractReward[RewardState, Extras]
    environment_weight: FloatLike | None = hyperparameter(None)
    reward_minibatches: int = static_integer(1, least=1)
    score_after_update: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        # Equinox runs this before the base class's, which would check the fields.
        check_fields(self)
        check_same_skills(self.agent, self.reward)
        if any(isinstance(each, NormalizedReward) for each in layers(self.agent)):
            raise ValueError(
                "A `NormalizedReward` within `Intrinsic` learns its scale from fresh "
                "transitions, which have no intrinsic reward yet; put it around: "
                "`NormalizedReward(Intrinsic(agent, reward))`, which scales what the "
                "environment gives."
            )

    @property
    def inner(self) -> AbstractAgent[State, Memory, Extras]:
        return self.agent

    def inner_state(self, state: IntrinsicState[State, RewardState]) -> State:
        check_state(self, state, IntrinsicState)
        return state.agent

    def inner_transitions(
        self, state: IntrinsicState[State, RewardState], transitions: Transition[Extras]
    ) -> Transition[Extras]:
        del state
        # Fresh transitions have no intrinsic reward. It is computed when a batch is
        # learned from, since it changes until then.
        reward = self._total(jnp.zeros(transitions.timestep.shape), transitions)
        return dataclasses.replace(transitions, reward=reward)

    def inner_spec(self, spec: EnvSpec) -> EnvSpec:
        return dataclasses.replace(spec, reward_size=None)

    def inner_observation(
        self,
        state: IntrinsicState[State, RewardState],
        observation: Observation[Array, "*batch obs"],
    ) -> Observation[Array, "*batch obs"]:
        del state
        return observation

    def init(
        self, spec: EnvSpec, *, key: PRNGKeyArray
    ) -> IntrinsicState[State, RewardState]:
        # Again, since `equinox.tree_at` replaces fields without `__check_init__`.
        check_same_skills(self.agent, self.reward)
        if self.environment_weight is not None and spec.reward_size is not None:
            raise ValueError(
                "`environment_weight` adds the environment's reward to the intrinsic "
                f"one, a scalar, but `spec.reward_size={spec.reward_size}`: it is a "
                "vector. Make it a scalar in the environment, or leave "
                "`environment_weight` out, which replaces it."
            )
        agent_key, reward_key = jr.split(key)
        return IntrinsicState(
            agent=self.agent.init(self.inner_spec(spec), key=agent_key),
            reward=self.reward.init(spec, key=reward_key),
        )

    def observe(
        self, state: IntrinsicState[State, RewardState], transitions: Transition[Extras]
    ) -> IntrinsicState[State, RewardState]:
        agent = self.agent.observe(
            state.agent, self.inner_transitions(state, transitions)
        )
        with self._missing_skill_named(transitions):
            reward = self.reward.observe(state.reward, transitions)
        what = f"`observe` of {type(self.reward).__name__} gives another state"
        check_kept(what, state.reward, reward, source="init")
        return IntrinsicState(agent=agent, reward=reward)

    def update(
        self,
        state: IntrinsicState[State, RewardState],
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[IntrinsicState[State, RewardState], Metrics]:
        score_key, reward_key, agent_key = jr.split(key, 3)
        with self._missing_skill_named(batch):
            reward_state, reward_metrics = self._learn_reward(
                state.reward, batch, key=reward_key
            )
            judge = reward_state if self.score_after_update else state.reward
            reward = self.reward.reward(judge, batch, step=step, key=score_key)
        updated = self.agent.update(
            state.agent,
            dataclasses.replace(batch, reward=self._total(reward, batch)),
            step=step,
            key=agent_key,
        )
        agent_state, agent_metrics = after_update(self.agent, state.agent, updated)
        metrics = reward_metrics | {"intrinsic_reward": jnp.mean(reward)}
        # The agent inside may have an intrinsic reward too, and metrics of these names.
        for name, value in agent_metrics.items():
            while name in metrics:
                name = f"inner_{name}"
            metrics[name] = value
        return IntrinsicState(agent=agent_state, reward=reward_state), metrics

    def _learn_reward(
        self, state: RewardState, batch: Transition[Extras], *, key: PRNGKeyArray
    ) -> tuple[RewardState, Metrics]:
        def learn(
            state: RewardState, rows: Transition[Extras], key: PRNGKeyArray
        ) -> tuple[RewardState, Metrics]:
            updated = self.reward.update(state, rows, key=key)
            return after_update(self.reward, state, updated)

        if self.reward_minibatches == 1:
            return learn(state, batch, key)
        return learn_in_minibatches(
            learn,
            state,
            flatten_batch(batch),
            num_epochs=1,
            num_minibatches=self.reward_minibatches,
            name="reward_minibatches",
            key=key,
        )

    @contextlib.contextmanager
    def _missing_skill_named(self, transitions: Transition[Extras]) -> Iterator[None]:
        """Explains an error due to a skill that the reward reads but batches lack."""
        try:
            yield
        except AttributeError as error:
            if error.name != "skill" or isinstance(transitions.extras, SkillExtras):
                raise
            name = type(self.reward).__name__
            raise ValueError(
                f"`{name}` reads the skill of each transition, but the agent inside, a "
                f"{type(self.agent).__name__}, has no skills; condition it on some: "
                f"`Intrinsic(SkillConditioned(agent, skills), {name}(...))`."
            ) from error

    def _total(
        self, reward: Float[Array, "*batch"], transitions: Transition[Extras]
    ) -> Float[Array, "*batch"]:
        """The reward that the agent learns from, given the intrinsic one."""
        check_rewards(self.reward, reward, transitions)
        if self.environment_weight is None:
            return reward
        return reward + self.environment_weight * transitions.reward


Intrinsic.__init__.__doc__ = """**Arguments:**

- `agent`: any agent that learns from a scalar reward.
- `reward`: the intrinsic reward, such as `eqrl.Discriminator`.
- `environment_weight`: factor of the environment's reward, which is added to the
    intrinsic one; any finite number. With `None` only the intrinsic reward counts.
- `reward_minibatches`: updates of the reward for each one of the agent, at least 1,
    each on an equal share of the batch. An on-policy agent updates only once per
    rollout, while the reward may learn from it in several steps. `ParticleEntropy` and
    `CIC` then divide by distances within a share of the batch, which are greater.
- `score_after_update`: whether a batch is scored by the reward that has just learned
    from it, as the code of METRA, CIC and RND does. At usual learning rates the
    difference is one small step.
"""

AnyIntrinsic: TypeAlias = Intrinsic
"""An `Intrinsic` around any agent, with any reward."""


def diayn(
    agent: AbstractAgent[State, Memory, Extras],
    num_skills: int | AbstractSkillPrior = 8,
    *,
    lr: FloatLike = 3e-4,
    descriptor: StateDescriptor = "state_descriptor",
    include_prior: bool = True,
    environment_weight: FloatLike | None = None,
    make_network: MakeDiscriminator | None = None,
    make_optimizer: MakeOptimizer = optax.adam,
    reward_minibatches: int = 1,
) -> Intrinsic[State, DiscriminatorState, SkillMemory[Memory], SkillExtras[Extras]]:
    """Makes any agent learn distinguishable skills without the environment's reward.

    It is `Intrinsic(SkillConditioned(agent, skills), Discriminator(skills))`; see
    `Discriminator` for the paper. To normalize observations, put the result inside a
    `Normalized`.

    The entropy bonus of an agent such as `SAC` competes with the reward, which is of
    the order of `log(num_skills)`: for short training an initial temperature of 0.1
    works better than 1.

    **Arguments:**

    - `agent`: any agent that learns from a scalar reward.
    - `num_skills`: the number of one-hot skills, all equally likely, at least 2; or a
        prior, such as `eqrl.SphereSkills()`.
    - The other arguments are those of `Discriminator` and `Intrinsic`.

    **Returns:**

    An agent like any other.
    """
    skills = as_skill_prior(num_skills, name="num_skills")
    reward = Discriminator(
        skills,
        lr=lr,
        descriptor=descriptor,
        include_prior=include_prior,
        make_network=make_network,
        make_optimizer=make_optimizer,
    )
    return Intrinsic(
        SkillConditioned(agent, skills),
        reward,
        environment_weight=environment_weight,
        reward_minibatches=reward_minibatches,
    )


def find(
    agent: AnyAgent, state: PyTree, transitions: PyTree, kind: type[Part]
) -> tuple[Part, PyTree, PyTree]:
    """The outermost agent or intrinsic reward of one kind inside nested wrappers.

    It is returned with its state and with the `transitions`, with any leading axes, as
    it sees them; each may be `None` if it is not needed. Raises a `ValueError` if there
    is none.
    """
    names = []
    while True:
        names.append(type(agent).__name__)
        if isinstance(agent, kind):
            return agent, state, transitions
        if isinstance(agent, Intrinsic):
            names[-1] += f" of {type(agent.reward).__name__}"
            reward_state = None
            if state is not None:
                check_state(agent, state, IntrinsicState)
                reward_state = state.reward
            for reward, part_state in rewards_of(agent.reward, reward_state):
                if isinstance(reward, kind):
                    return reward, part_state, transitions
        if not isinstance(agent, AbstractWrapper):
            raise ValueError(
                f"There is no `{kind.__name__}` in this agent, a "
                f"{' around a '.join(names)}. Only an `eqrl.AbstractWrapper` is looked "
                "into."
            )
        # Transitions first: how they are seen depends on the wrapper's own state.
        if state is not None and transitions is not None:
            transitions = agent.inner_transitions(state, transitions)
        if state is not None:
            state = agent.inner_state(state)
        agent = agent.inner


def unwrap(agent: AnyAgent, kind: type[Part]) -> Part:
    """The outermost agent or intrinsic reward of one kind inside nested wrappers.

    A static type checker infers the class, as in
    `eqrl.unwrap(agent, eqrl.SAC).actor_lr`.

    **Arguments:**

    - `agent`: any agent, possibly an `eqrl.AbstractWrapper`.
    - `kind`: a class of agents or of rewards, such as `eqrl.SAC` or
        `eqrl.Discriminator`.

    Raises a `ValueError` if there is none.
    """
    return find(agent, None, None, kind)[0]


def rewards_of(reward: AnyReward, state: PyTree) -> list[tuple[AnyReward, PyTree]]:
    """A reward and all rewards inside it, each with its state."""
    found = [(reward, state)]
    if isinstance(reward, Sum):
        for index, part in enumerate(reward.rewards):
            part_state = None if state is None else state.rewards[index]
            found.extend(rewards_of(part, part_state))
    elif isinstance(reward, (Scaled, SMERL)):
        found.extend(rewards_of(reward.inner, None if state is None else state.reward))
    return found
