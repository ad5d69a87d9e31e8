import dataclasses
import functools
import warnings
from pathlib import Path
from typing import Any

import brax.envs
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from brax import base
from brax.envs.fast import Fast
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

import eqrl
from eqrl.envs import BraxEnv, Outcome, TimeLimit
from eqrl.envs._make import descriptor_names

from ..toy import GetKey, check_types_of_states


NUM_STEPS = 40


@functools.cache
def _environment(name: str) -> brax.envs.Env:
    """Brax's, of which the physics is compiled once, wherever it is called."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        environment = brax.envs.get_environment(name, backend="spring")
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)

    def step_strongly(state: brax.envs.State, action: Array) -> brax.envs.State:
        # Brax's own states are weakly typed, which would be another program.
        if not isinstance(action, jax.core.Tracer):
            state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)
        return step(state, action)

    vars(environment).update(reset=reset, step=step_strongly)
    return environment


@functools.cache
def _env(name: str) -> BraxEnv:
    return BraxEnv(_environment(name))


def _actions(env: BraxEnv) -> Float[Array, "time act"]:
    noise = jr.uniform(jr.key(1), (NUM_STEPS, env.spec.action_size), minval=-1)
    return noise.at[NUM_STEPS // 2 :].set(1)


@functools.cache
def _first_and_outcomes(
    name: str,
) -> tuple[brax.envs.State, Float[Array, " obs"], Outcome]:
    """The first state and observation, and the outcomes, stacked over time."""
    env = _env(name)
    first, observation = env.reset(key=jr.key(0))
    state, outcomes = first, []
    for action in _actions(env):
        state, outcome = env.step(state, action, key=jr.key(2))
        outcomes.append(outcome)
    return first, observation, jax.tree.map(lambda *each: np.stack(each), *outcomes)


def _by_adapter(name: str) -> tuple[Float[Array, " obs"], Outcome]:
    return _first_and_outcomes(name)[1:]


@functools.cache
def _by_hand(name: str) -> list[Any]:
    """Brax's own states, from the first to the last."""
    environment = _environment(name)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        states = [environment.reset(jr.key(0))]
        for action in _actions(_env(name)):
            states.append(environment.step(states[-1], action))
    return states


both = pytest.mark.parametrize("name", ["fast", "inverted_pendulum"])


@both
def test_what_is_observed_paid_and_done_is_as_in_brax(name: str) -> None:
    first, outcomes = _by_adapter(name)
    before, *after = _by_hand(name)
    np.testing.assert_allclose(first, before.obs, rtol=1e-6)
    expected = np.stack([state.obs for state in after])
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(outcomes.observation, expected, rtol=1e-4, atol=1e-6)
    rewards = np.stack([state.reward for state in after])
    np.testing.assert_allclose(outcomes.reward, rewards, rtol=1e-4, atol=1e-6)
    done = np.stack([state.done for state in after])
    # The pole falls on the way; `fast` never ends.
    assert len(np.unique(done)) == (2 if name == "inverted_pendulum" else 1)
    np.testing.assert_array_equal(outcomes.terminated, done.astype(bool))


def test_what_brax_calls_a_time_out_is_not_truncated() -> None:
    assert any(state.info["time_out"] for state in _by_hand("inverted_pendulum")[1:])
    _, outcomes = _by_adapter("inverted_pendulum")
    assert not np.any(outcomes.truncated)


@both
def test_reset_and_step_give_states_of_the_same_strong_types(name: str) -> None:
    check_types_of_states(_env(name))


class RepeatingFast(Fast):
    """Puts one array into two places, as `inverted_pendulum` does with `done`."""

    def reset(self, rng: PRNGKeyArray) -> brax.envs.State:
        state = super().reset(rng)
        return dataclasses.replace(state, info={"time_out": state.done})


def test_reset_holds_no_buffer_twice(getkey: GetKey) -> None:
    env = BraxEnv(RepeatingFast())
    leaves = jax.tree.leaves(env.reset(key=getkey()))
    buffers = {leaf.unsafe_buffer_pointer() for leaf in leaves}
    assert len(buffers) == len(leaves)


class CountingFast(Fast):
    """Writes into the metrics of the state it is given, as brax's walkers do."""

    def reset(self, rng: PRNGKeyArray) -> brax.envs.State:
        state = super().reset(rng)
        return dataclasses.replace(state, metrics={"count": jnp.zeros(())})

    def step(self, state: brax.envs.State, action: Array) -> brax.envs.State:
        state.metrics.update(count=state.metrics["count"] + 1)
        return super().step(state, action)


def test_step_leaves_the_metrics_of_the_state_it_is_given(getkey: GetKey) -> None:
    env = BraxEnv(CountingFast())
    state, _ = env.reset(key=getkey())
    env.step(state, jnp.zeros(1), key=getkey())
    assert state.metrics["count"] == 0


def test_spec_of_the_inverted_pendulum() -> None:
    assert "_backend='spring'" in repr(_env("inverted_pendulum"))
    spec = _env("inverted_pendulum").spec
    assert (spec.observation_size, spec.action_size) == (4, 1)
    assert spec.reward_size is None
    assert spec.max_steps is None


def _without_physics(name: str) -> BraxEnv:
    """Of the class of this name, with a state of two links and no model."""
    links = base.Transform.create(pos=jnp.arange(6.0).reshape(2, 3))
    motion = base.Motion.create(vel=jnp.zeros((2, 3)))
    state = brax.envs.State(
        pipeline_state=base.State(jnp.zeros(1), jnp.zeros(1), links, motion, None),
        obs=jnp.zeros(1),
        reward=jnp.zeros(()),
        done=jnp.zeros(()),
    )
    members = {
        "__init__": lambda self: None,
        "reset": lambda self, rng: state,
        "action_size": 1,
    }
    known: type[brax.envs.Env] = brax.envs._envs[name]
    return BraxEnv(type(known.__name__, (known,), members)())


@pytest.mark.parametrize(
    "name, size",
    [
        ("ant", 2),
        ("humanoid", 2),
        ("humanoidstandup", 2),
        ("swimmer", 2),
        ("halfcheetah", 1),
        ("hopper", 1),
        ("walker2d", 1),
        ("inverted_pendulum", None),
        ("fast", None),
    ],
)
def test_only_walkers_have_a_state_descriptor_which_is_where_the_torso_is(
    name: str, size: int | None
) -> None:
    env = _without_physics(name)
    assert env.spec.state_descriptor_size == size
    state, _ = env.reset(key=jr.key(0))
    # The torso is the first of the links.
    expected = None if size is None else np.arange(size)
    np.testing.assert_array_equal(env.state_descriptor(state), expected)
    assert descriptor_names(TimeLimit(env, 5)) == (size and ("x", "y")[:size])


def test_without_a_state_descriptor_there_is_none(getkey: GetKey) -> None:
    env = _env("fast")
    state, _ = env.reset(key=getkey())
    assert env.state_descriptor(state) is None


def _cart_position(state: brax.envs.State) -> Shaped[Array, " descriptor"]:
    assert state.pipeline_state is not None
    return state.pipeline_state.q[:1]


def test_a_state_descriptor_may_be_given() -> None:
    environment = _environment("inverted_pendulum")
    env = BraxEnv(environment, state_descriptor=_cart_position)
    state, observation, _ = _first_and_outcomes("inverted_pendulum")
    np.testing.assert_array_equal(env.state_descriptor(state), observation[:1])
    assert env.spec.state_descriptor_size == 1


def test_a_state_descriptor_of_integers_becomes_floats(getkey: GetKey) -> None:
    env = BraxEnv(Fast(), state_descriptor=lambda state: jnp.arange(3))
    state, _ = env.reset(key=getkey())
    np.testing.assert_array_equal(env.state_descriptor(state), [0.0, 1.0, 2.0])


def test_a_state_descriptor_that_is_no_vector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`state_descriptor` of `Fast` gives .*\(\)"):
        BraxEnv(Fast(), state_descriptor=lambda state: jnp.zeros(()))


def test_observations_in_a_dictionary_are_refused() -> None:
    environment: Any = Fast
    with pytest.raises(ValueError, match="`Fast` observes a dict"):
        BraxEnv(environment(obs_mode="dict_state"))


@pytest.mark.parametrize(
    "options, name",
    [
        ({"auto_reset": False}, "EpisodeWrapper"),
        ({"episode_length": None, "batch_size": 2}, "AutoResetWrapper"),
        (
            {"episode_length": None, "auto_reset": False, "batch_size": 2},
            "VmapWrapper",
        ),
    ],
)
def test_an_environment_in_wrappers_for_training_is_refused(
    options: dict[str, Any], name: str
) -> None:
    environment = brax.envs.create("fast", **options)
    # Behind a wrapper of a user's own as well.
    for each in (environment, brax.envs.Wrapper(environment)):
        with pytest.raises(ValueError, match=rf"`{name}`.*`brax\.envs\.get_env.*Time"):
            BraxEnv(each)


def test_an_environment_in_a_wrapper_of_ones_own_is_accepted() -> None:
    environment = brax.envs.Wrapper(brax.envs.get_environment("fast"))
    assert BraxEnv(environment).spec == BraxEnv(environment.env).spec


def test_making_an_environment_is_silent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # MuJoCo writes a file of its warnings into the current folder.
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Its model has an attribute of which MuJoCo warns.
        eqrl.envs.make("brax/halfcheetah", backend="positional")
    assert not [one for one in caught if issubclass(one.category, UserWarning)]
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
