import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqrl.envs import (
    BraxEnv,
    DisabledActions,
    TimeLimit,
    _make,
    ant_with_broken_legs,
    make,
)


@pytest.fixture(scope="module", autouse=True)
def trace_each_ant_once() -> Iterator[None]:
    """Tracing the reset of an ant takes a second, each time that one is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_make, "make", functools.cache(make))
        yield


def _ant(*legs: int) -> DisabledActions[Any]:
    return ant_with_broken_legs(legs)


def _system(env: DisabledActions[Any]) -> Any:
    assert isinstance(env.env, TimeLimit) and isinstance(env.env.env, BraxEnv)
    environment: Any = env.env.env.environment
    return environment.sys


def _joints_without_torque(env: DisabledActions[Any]) -> set[str]:
    """By the names in the model that brax hands to MuJoCo."""
    model = _system(env).mj_model
    joints = [model.joint(joint).name for joint in model.actuator_trnid[:, 0]]
    return {joints[element] for element in np.flatnonzero(env.disabled)}


@pytest.mark.parametrize("leg", [1, 2, 3, 4])
def test_hip_and_ankle_of_a_broken_leg_are_disabled(leg: int) -> None:
    env = _ant(leg)
    assert _joints_without_torque(env) == {f"hip_{leg}", f"ankle_{leg}"}


def test_several_legs_may_be_broken_and_none() -> None:
    assert _joints_without_torque(_ant(4, 2)) == {
        "hip_4",
        "ankle_4",
        "hip_2",
        "ankle_2",
    }
    assert not _joints_without_torque(_ant())


def test_the_first_two_elements_of_the_action_are_those_of_leg_4() -> None:
    env = _ant(4)
    np.testing.assert_array_equal(np.flatnonzero(env.disabled), [0, 1])


@pytest.mark.parametrize(
    "leg, signs", [(1, (1, 1)), (2, (-1, 1)), (3, (-1, -1)), (4, (1, -1))]
)
def test_legs_lie_where_they_are_said_to(leg: int, signs: tuple[int, int]) -> None:
    system = _system(_ant(leg))
    thigh = system.link_names.index(f"aux_{leg}")
    place = np.asarray(system.link.transform.pos[thigh, :2])
    np.testing.assert_array_equal(np.sign(place), signs)


def test_only_the_torque_on_the_broken_leg_is_gone() -> None:
    # The forces on the joints, without a step of physics.
    from brax import actuator

    env = _ant(2)
    system = _system(env)
    action = jnp.where(env.disabled, 0.0, jnp.ones(8))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        torques = actuator.to_tau(system, action, system.init_q, jnp.zeros(14))
    model = system.mj_model
    still = {
        model.joint(int(model.dof_jntid[joint])).name
        for joint in np.flatnonzero(torques == 0)
    }
    assert still == {"root", "hip_2", "ankle_2"}


def test_ants_with_other_broken_legs_differ_in_a_leaf_only() -> None:
    first, second = _ant(1), ant_with_broken_legs([4, 2])
    assert jax.tree.structure(first) == jax.tree.structure(second)
    types = [
        [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(env)]
        for env in (first, second)
    ]
    assert types[0] == types[1]


def test_the_ant_is_as_make_gives_it() -> None:
    env = ant_with_broken_legs([1], backend="positional", max_steps=7)
    assert env.spec.max_steps == 7
    assert env.spec.action_size == 8
    assert env.spec.state_descriptor_size == 2
    assert isinstance(env.env, TimeLimit) and isinstance(env.env.env, BraxEnv)
    assert env.env.env.environment.backend == "positional"


@pytest.mark.parametrize("leg", [0, 5, -1])
def test_a_leg_that_an_ant_does_not_have_is_refused(leg: int) -> None:
    with pytest.raises(ValueError, match=rf"`legs` names \[{leg}\]"):
        ant_with_broken_legs([1, leg])
