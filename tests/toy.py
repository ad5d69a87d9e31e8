"""Small environments, agents and networks whose behavior can be worked out by hand."""

import contextlib
import dataclasses
import functools
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from eqrl import (
    AbstractAgent,
    AbstractReward,
    EnvSpec,
    FloatLike,
    Metrics,
    Mode,
    Transition,
)
from eqrl._training import rows
from eqrl.envs import AbstractEnv, Outcome, Point
from eqrl.nn import AbstractDensity, AbstractPolicy, TanhNormal
from eqrl.spaces import Discrete


GetKey = Callable[[], PRNGKeyArray]


def closed_output() -> contextlib.AbstractContextManager[Mock]:
    """Has standard output be one that nothing reads any more."""
    closed = Mock(["flush", "isatty", "write"])
    closed.isatty.return_value = False
    closed.write.side_effect = BrokenPipeError
    return contextlib.redirect_stdout(closed)


def interrupt_in_piece(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Rows run in pieces of one iteration each, in one of which Ctrl-C is pressed."""
    monkeypatch.setattr(rows, "_SECONDS_OF_PIECE", 0.0)
    run_piece = rows.Runner._run_piece
    pieces = itertools.count()

    def interrupting(self: rows.Runner, *args: Any, **options: Any) -> rows.Position:
        if next(pieces) == number:
            signal.raise_signal(signal.SIGINT)
        return run_piece(self, *args, **options)

    monkeypatch.setattr(rows.Runner, "_run_piece", interrupting)


class ClockState(eqx.Module):
    """When it is, and when the episode ends."""

    time: Int[Array, ""]
    length: Int[Array, ""]


class Clock(AbstractEnv[ClockState]):
    """Counts its steps, whatever is done.

    It observes the time and the episode's length, which is drawn at the reset. The step
    that leaves time t is worth t + 1 (and, where there are two rewards, -2), so an
    episode of length n is worth n (n + 1) / 2; steps after its end are worth 1000.
    """

    longest: int = eqx.field(default=4, static=True)
    terminates: bool = eqx.field(default=True, static=True)
    reward_size: int | None = eqx.field(default=None, static=True)
    has_limit: bool = eqx.field(default=True, static=True)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation_size=2,
            action_size=1,
            reward_size=self.reward_size,
            state_descriptor_size=1,
            max_steps=self.longest if self.has_limit else None,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[ClockState, Float[Array, "2"]]:
        length = jr.randint(key, (), 1, self.longest + 1)
        state = ClockState(time=jnp.zeros((), int), length=length)
        return state, _observe_clock(state)

    def step(
        self, state: ClockState, action: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> tuple[ClockState, Outcome]:
        del action, key
        reward = (state.time + 1).astype(float)
        reward = jnp.where(state.time < state.length, reward, 1000.0)
        if self.reward_size is not None:
            reward = jnp.stack([reward, jnp.full((), -2.0)])
        state = ClockState(time=state.time + 1, length=state.length)
        over = state.time >= state.length
        outcome = Outcome(
            observation=_observe_clock(state),
            reward=reward,
            terminated=over & self.terminates,
            truncated=over & (not self.terminates),
        )
        return state, outcome

    def state_descriptor(self, state: ClockState) -> Float[Array, "1"]:
        return 10.0 * state.time.astype(float)[None]


def _observe_clock(state: ClockState) -> Float[Array, "2"]:
    return jnp.stack([state.time, state.length]).astype(float)


class DriftState(eqx.Module):
    """Where a point on a line is, and since when."""

    position: Float[Array, ""]
    time: Int[Array, ""]


class Drift(AbstractEnv[DriftState]):
    """A point on a line which drifts at random and which actions push.

    It observes its position and the time. The reward is minus the squared distance from
    zero. Beyond 2 the episode terminates; after `max_steps` it is truncated.
    """

    max_steps: int = eqx.field(default=5, static=True)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(observation_size=2, action_size=1, max_steps=self.max_steps)

    def reset(self, *, key: PRNGKeyArray) -> tuple[DriftState, Float[Array, "2"]]:
        state = DriftState(position=jr.normal(key), time=jnp.zeros((), int))
        return state, _observe_drift(state)

    def step(
        self, state: DriftState, action: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> tuple[DriftState, Outcome]:
        position = state.position + 0.3 * action[0] + 0.3 * jr.normal(key)
        state = DriftState(position=position, time=state.time + 1)
        terminated = jnp.abs(position) > 2
        outcome = Outcome(
            observation=_observe_drift(state),
            reward=-(position**2),
            terminated=terminated,
            truncated=(state.time >= self.max_steps) & ~terminated,
        )
        return state, outcome

    def state_descriptor(self, state: DriftState) -> None:
        del state
        return None


def _observe_drift(state: DriftState) -> Float[Array, "2"]:
    return jnp.stack([state.position, state.time.astype(float)])


class WorldState(eqx.Module):
    """The state of the drifting point, and the steps of the episode."""

    drift: DriftState
    num_steps: Int[Array, ""]


class World(AbstractEnv[WorldState]):
    """`Drift` without pushes, with something added to its outputs at one step.

    That is the step `at` of an episode. If not `ends`, it is without ends. All settings
    are arrays, so that every test shares one compilation.
    """

    at: Array = eqx.field(default=-1, converter=jnp.asarray)
    reward: Array = eqx.field(default=0.0, converter=jnp.asarray)
    observation: Array = eqx.field(default=0.0, converter=jnp.asarray)
    descriptor: Array = eqx.field(default=0.0, converter=jnp.asarray)
    ends: Array = eqx.field(default=False, converter=jnp.asarray)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(observation_size=2, action_size=1, state_descriptor_size=1)

    def reset(self, *, key: PRNGKeyArray) -> tuple[WorldState, Float[Array, "2"]]:
        drift, observation = Drift().reset(key=key)
        return WorldState(drift=drift, num_steps=jnp.zeros((), int)), observation

    def step(
        self, state: WorldState, action: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> tuple[WorldState, Outcome]:
        del action
        # Nothing that is done here could make an outcome nan.
        drift, outcome = Drift().step(state.drift, jnp.zeros(1), key=key)
        breaks = state.num_steps == self.at
        observation = jnp.where(
            breaks & jnp.array([False, True]),
            outcome.observation + self.observation,
            outcome.observation,
        )
        reward = jnp.where(breaks, outcome.reward + self.reward, outcome.reward)
        return WorldState(drift=drift, num_steps=state.num_steps + 1), Outcome(
            observation=observation,
            reward=reward,
            terminated=outcome.terminated & self.ends,
            truncated=outcome.truncated & self.ends,
        )

    def state_descriptor(self, state: WorldState) -> Float[Array, "1"]:
        breaks = state.num_steps == self.at + 1
        return jnp.where(breaks, self.descriptor, 0.0)[None]


class Idle(AbstractAgent[Any, Any, Any]):
    """Has no state, remembers and learns nothing, and acts with zero.

    Other agents of the tests are this one but for what they are about.
    """

    length: int = eqx.field(default=1, static=True)

    @property
    def sequence_length(self) -> int | None:
        return self.length

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> Any:
        del spec, key
        return None

    def begin(
        self, state: Any, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Any:
        del state, spec, index, key
        return None

    def act(
        self,
        state: Any,
        memory: Any,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Array, Any, Any]:
        del state, memory, observation, mode, key
        return jnp.zeros(1), None, None

    def observe(self, state: Any, transitions: Transition[Any]) -> Any:
        del transitions
        return state

    def update(
        self,
        state: Any,
        batch: Transition[Any],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[Any, Metrics]:
        del batch, step, key
        return state, {}


class ScribeState(eqx.Module):
    """How often a scribe was called, and with what.

    Of each update it has the step, the timesteps of the first element of the batch and
    a draw from the key.
    """

    num_observed: Int[Array, ""]
    num_updates: Int[Array, ""]
    last_step: Int[Array, ""]
    last_timestep: Int[Array, ""]
    timesteps: Int[Array, "16"]
    draws: Float[Array, "16"]


class ScribeMemory(eqx.Module):
    """Which environment it is, a number drawn for the episode, and steps since then."""

    index: Int[Array, ""]
    skill: Float[Array, ""]
    age: Int[Array, ""]


class Scribe(Idle):
    """Learns nothing and writes down everything.

    It acts with 0.25 at random, 0.5 when it samples, and with its skill when greedy.
    Its extras are its memory before the step.
    """

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> ScribeState:
        del spec, key
        return ScribeState(
            num_observed=jnp.zeros((), int),
            num_updates=jnp.zeros((), int),
            last_step=jnp.full((), -1, int),
            last_timestep=jnp.full((), -1, int),
            timesteps=jnp.full(16, -1, int),
            draws=jnp.zeros(16),
        )

    def begin(
        self,
        state: ScribeState,
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> ScribeMemory:
        del state, spec
        skill = jr.uniform(key, minval=-1, maxval=1)
        return ScribeMemory(index=index, skill=skill, age=jnp.zeros((), int))

    def act(
        self,
        state: ScribeState,
        memory: ScribeMemory,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], ScribeMemory, ScribeMemory]:
        del state, observation, key
        actions = {
            "random": jnp.full((), 0.25),
            "sample": jnp.full((), 0.5),
            "greedy": memory.skill,
        }
        after = ScribeMemory(index=memory.index, skill=memory.skill, age=memory.age + 1)
        return actions[mode][None], after, memory

    def observe(
        self, state: ScribeState, transitions: Transition[ScribeMemory]
    ) -> ScribeState:
        return dataclasses.replace(
            state, num_observed=state.num_observed + transitions.reward.shape[0]
        )

    def update(
        self,
        state: ScribeState,
        batch: Transition[ScribeMemory],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[ScribeState, Metrics]:
        timesteps = batch.timestep.reshape(batch.reward.shape[0], -1)
        state = ScribeState(
            num_observed=state.num_observed,
            num_updates=state.num_updates + 1,
            last_step=step,
            last_timestep=timesteps[0, -1],
            timesteps=state.timesteps.at[step % 16].set(timesteps[0, 0]),
            draws=state.draws.at[step % 16].set(jr.uniform(key)),
        )
        return state, {
            "update": step.astype(float),
            "batch_size": jnp.full((), float(batch.reward.size)),
        }


class LearnerState(eqx.Module):
    """A linear policy, and what of rewards it was shown."""

    weight: Float[Array, " obs"]
    observed: Float[Array, ""]


class Learner(Idle):
    """Learns something from each batch and key, and acts with it and with noise.

    It has one action. It is the quickest to compile of those that learn.
    """

    # No `hyperparameter`, whose values are checked: it may be nan, or a stack.
    actor_lr: FloatLike = eqx.field(
        default=1e-2, converter=lambda rate: jnp.asarray(rate, float)
    )

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> LearnerState:
        weight = jr.normal(key, (spec.observation_size,))
        return LearnerState(weight=weight, observed=jnp.zeros(()))

    def act(
        self,
        state: LearnerState,
        memory: None,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], None, None]:
        del memory
        action = jnp.tanh(jnp.sum(state.weight * observation))
        if mode != "greedy":
            action = 0.5 * action + 0.5 * jr.uniform(key, minval=-1, maxval=1)
        return action[None], None, None

    def observe(
        self, state: LearnerState, transitions: Transition[None]
    ) -> LearnerState:
        observed = state.observed + jnp.sum(transitions.reward)
        return LearnerState(weight=state.weight, observed=observed)

    def update(
        self,
        state: LearnerState,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[LearnerState, Metrics]:
        del step
        error = batch.next_observation @ state.weight - batch.reward
        step_size = self.actor_lr * jr.uniform(key)
        change = jnp.mean(jnp.tanh(error)[:, None] * batch.observation, axis=0)
        weight = state.weight - step_size * change
        state = LearnerState(weight=weight, observed=state.observed)
        return state, {"loss": jnp.mean(error**2)}


class Relay(AbstractReward[Any]):
    """Pays the environment's reward, and learns nothing."""

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> Any:
        del spec, key
        return None

    def observe(self, state: Any, transitions: Transition[Any]) -> Any:
        del transitions
        return state

    def reward(
        self,
        state: Any,
        batch: Transition[Any],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del state, step, key
        return batch.reward

    def update(
        self, state: Any, batch: Transition[Any], *, key: PRNGKeyArray
    ) -> tuple[Any, Metrics]:
        del batch, key
        return state, {}


def same(one: PyTree, other: PyTree) -> bool:
    """Whether two trees are equal to the last bit, `nan` being equal to `nan`."""
    leaves, structure = jax.tree.flatten(one)
    other_leaves, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(
        x.dtype == y.dtype
        and np.array_equal(x, y, equal_nan=jnp.issubdtype(x.dtype, jnp.floating))
        for x, y in zip(leaves, other_leaves, strict=True)
    )


class LinearCritic(eqx.Module):
    """`observation_weight . observation + action_weight . action + bias`."""

    observation_weight: Float[Array, " obs"]
    action_weight: Float[Array, " act"]
    bias: Float[Array, ""]

    def __call__(
        self, observation: Float[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, ""]:
        return (
            jnp.dot(self.observation_weight, observation)
            + jnp.dot(self.action_weight, action)
            + self.bias
        )


def make_linear_critic(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> LinearCritic:
    observation_key, action_key, bias_key = jr.split(key, 3)
    return LinearCritic(
        observation_weight=jr.normal(observation_key, (observation_size,)),
        action_weight=jr.normal(action_key, (action_size,)),
        bias=jr.normal(bias_key),
    )


class LinearActor(eqx.Module):
    """`tanh(weight observation)`."""

    weight: Float[Array, "act obs"]

    def __call__(self, observation: Float[Array, " obs"]) -> Float[Array, " act"]:
        return jnp.tanh(self.weight @ observation)


def make_linear_actor(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> LinearActor:
    return LinearActor(weight=jr.normal(key, (action_size, observation_size)))


class LinearGaussian(AbstractPolicy[TanhNormal]):
    """A tanh-normal with mean `weight observation` and a scale of its own."""

    weight: Float[Array, "act obs"]
    log_scale: Float[Array, " act"]

    def __call__(self, observation: Float[Array, " obs"]) -> TanhNormal:
        return TanhNormal(mean=self.weight @ observation, log_scale=self.log_scale)


def make_linear_gaussian(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> LinearGaussian:
    weight_key, scale_key = jr.split(key)
    return LinearGaussian(
        weight=jr.normal(weight_key, (action_size, observation_size)),
        log_scale=0.3 * jr.normal(scale_key, (action_size,)),
    )


class FixedDensity(AbstractDensity):
    """Always the same action, of which it states a log-probability."""

    action: Float[Array, " act"]
    log_prob: Float[Array, ""]

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        del key
        return self.action

    def sample_and_log_prob(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " act"], Float[Array, ""]]:
        del key
        return self.action, self.log_prob

    def mode(self) -> Float[Array, " act"]:
        return self.action


def transitions_of(observation: Array, **given: Any) -> Transition[Any]:
    """Transitions of these arrays; what is not given is zero, false or `None`."""
    shape = observation.shape
    # In NumPy, which compiles nothing.
    rest: dict[str, Any] = {
        "reward": jnp.asarray(np.zeros(shape[:-1], np.float32)),
        "next_observation": jnp.asarray(np.zeros(shape, np.float32)),
        "terminated": jnp.asarray(np.zeros(shape[:-1], bool)),
        "truncated": jnp.asarray(np.zeros(shape[:-1], bool)),
        "timestep": jnp.asarray(np.zeros(shape[:-1], np.int32)),
        "state_descriptor": None,
        "next_state_descriptor": None,
        "extras": None,
    }
    return Transition(observation=observation, **(rest | given))


@functools.partial(
    jax.jit, static_argnums=1, static_argnames=("observation_size", "action_size")
)
def random_transitions(
    key: PRNGKeyArray, size: int, *, observation_size: int, action_size: int
) -> Transition[None]:
    """A batch with the leading axis `(size,)`.

    About half terminate, and of the others every third was cut off by a time limit,
    which no off-policy loss and no reward may treat in another way.
    """
    keys = jr.split(key, 5)
    terminated = jr.bernoulli(keys[4], 0.5, (size,))
    return transitions_of(
        jr.normal(keys[0], (size, observation_size)),
        action=jr.uniform(keys[1], (size, action_size), minval=-1, maxval=1),
        reward=jr.normal(keys[2], (size,)),
        next_observation=jr.normal(keys[3], (size, observation_size)),
        terminated=terminated,
        truncated=~terminated & (jnp.arange(size) % 3 == 0),
    )


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, those of the jaxprs within it too."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for parameter in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            if hasattr(parameter, "eqns") or hasattr(parameter, "jaxpr"):
                yield from equations(parameter)


def primitives_with_axis(jaxpr: Any, size: int) -> set[str]:
    """Names of the primitives that give an array with an axis of this size.

    Loops, branches and calls are looked into, and not themselves named.
    """
    return {
        equation.primitive.name
        for equation in equations(jaxpr)
        if any(size in getattr(out.aval, "shape", ()) for out in equation.outvars)
        and equation.primitive.name not in ("jit", "while", "scan", "cond")
    }


class Compass(Idle):
    """Acts with the last elements of what it observes, whatever it has learnt.

    Its state adds up all rewards that it was shown. Of a batch it tells the sums.
    """

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> Float[Array, ""]:
        del spec, key
        return jnp.zeros(())

    def act(
        self,
        state: Float[Array, ""],
        memory: None,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "2"], None, None]:
        del state, memory, mode, key
        return observation[-2:], None, None

    def observe(
        self, state: Float[Array, ""], transitions: Transition[None]
    ) -> Float[Array, ""]:
        return state + jnp.sum(transitions.reward)

    def update(
        self,
        state: Float[Array, ""],
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, ""], Metrics]:
        del step, key
        return state, {
            "observation": jnp.sum(batch.observation),
            "next_observation": jnp.sum(batch.next_observation),
            "observation_size": jnp.full((), float(batch.observation.shape[-1])),
            "reward": jnp.sum(batch.reward),
        }


class Directions(AbstractEnv[Any]):
    """A point in the plane that goes one of four ways."""

    point: Point

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(self.point.spec, action=Discrete(4))

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Float[Array, " obs"]]:
        return self.point.reset(key=key)

    def step(
        self, state: Any, action: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Any, Outcome]:
        ways = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        return self.point.step(state, ways[action], key=key)

    def state_descriptor(self, state: Any) -> Float[Array, " descriptor"] | None:
        return self.point.state_descriptor(state)


def check_types_of_states(env: AbstractEnv[Any]) -> None:
    """Checks that reset and step give states of the same strong types."""
    state, _ = eqx.filter_eval_shape(env.reset, key=jr.key(0))
    action = jnp.zeros(env.spec.action_size)
    after, _ = eqx.filter_eval_shape(env.step, state, action, key=jr.key(0))
    types = lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type)
    assert jax.tree.map(types, state) == jax.tree.map(types, after)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
