from typing import Any

import brax.envs
import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Shaped

from eqrl.envs import AbstractEnv, BraxEnv, Point, TimeLimit, make
from eqrl.envs._make import name_of

from ..toy import Clock


def _speed(state: Any) -> Shaped[Array, " descriptor"]:
    return state.theta_dot[None]


def _height(state: Any) -> Shaped[Array, " descriptor"]:
    return state.pipeline_state.x.pos[2:]


@pytest.mark.parametrize(
    "name, options",
    [
        ("brax/fast", {}),
        ("brax/fast", {"backend": "spring", "max_steps": 7}),
        ("brax/fast", {"state_descriptor": _height}),
        ("gymnax/Pendulum-v1", {}),
        ("gymnax/PointRobot-misc", {"max_steps": 7}),
        ("gymnax/Pendulum-v1", {"state_descriptor": _speed}),
        ("eqrl/Point", {"max_steps": 7}),
    ],
)
def test_two_makes_share_one_trace(name: str, options: dict[str, Any]) -> None:
    traces = []

    @eqx.filter_jit
    def observe(env: AbstractEnv[Any]) -> Float[Array, " obs"]:
        traces.append(None)
        state, _ = env.reset(key=jr.key(0))
        action = jnp.zeros(env.spec.action_size)
        return env.step(state, action, key=jr.key(1))[1].observation

    # Not compiled, which would take longer and find the same trace.
    traced: Any = observe
    traced.lower(make(name, **options))
    traced.lower(make(name, **options))
    assert len(traces) == 1


@pytest.mark.parametrize(
    "name, by_default",
    [("brax/fast", 1000), ("gymnax/Pendulum-v1", 200), ("eqrl/Point", 50)],
)
def test_max_steps_is_the_librarys_unless_given(name: str, by_default: int) -> None:
    assert make(name).spec.max_steps == by_default
    assert make(name, max_steps=7).spec.max_steps == 7


def test_brax_is_truncated_at_max_steps() -> None:
    env = make("brax/fast", max_steps=1)
    state, _ = env.reset(key=jr.key(0))
    _, outcome = env.step(state, jnp.zeros(1), key=jr.key(1))
    assert outcome.truncated


@pytest.mark.parametrize("backend", ["positional", "spring"])
def test_brax_takes_a_backend(backend: str) -> None:
    env = make("brax/inverted_pendulum", backend=backend)
    assert isinstance(env, TimeLimit)
    assert isinstance(env.env, BraxEnv)
    assert env.env.environment.backend == backend


def test_brax_has_the_backend_that_it_has_by_itself() -> None:
    env = make("brax/inverted_pendulum")
    assert isinstance(env, TimeLimit)
    assert isinstance(env.env, BraxEnv)
    brax_env = brax.envs.get_environment("inverted_pendulum")
    assert env.env.environment.backend == brax_env.backend == "generalized"


def test_brax_takes_a_state_descriptor() -> None:
    env = make("brax/fast", state_descriptor=_height)
    assert env.spec.state_descriptor_size == 1


def test_gymnax_takes_a_state_descriptor() -> None:
    env = make("gymnax/Pendulum-v1", state_descriptor=_speed)
    state, observation = env.reset(key=jr.key(0))
    np.testing.assert_array_equal(env.state_descriptor(state), observation[2:])


def test_a_point_is_as_its_class_makes_it() -> None:
    assert eqx.tree_equal(make("eqrl/Point", max_steps=7), Point(max_steps=7))


@pytest.mark.parametrize(
    "name, near",
    [
        ("brax/ants", "brax/ant"),
        ("brax/half_cheetah", "brax/halfcheetah"),
        ("brax/ANT", "brax/ant"),
        ("gymnax/pendulum", "gymnax/Pendulum-v1"),
        ("eqrl/point", "eqrl/Point"),
        ("braxx/ant", "brax/ant"),
        ("CartPole-v1", "gymnasium/CartPole-v1`, `gymnax/CartPole-v1"),
    ],
)
def test_an_unknown_name_is_refused_with_a_near_one(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"[Dd]id you mean .*`{near}`"):
        make(name)


@pytest.mark.parametrize("prefix, known", [("brax", "ant"), ("gymnax", "Pendulum-v1")])
def test_a_name_like_no_other_is_refused_with_all_there_are(
    prefix: str, known: str
) -> None:
    with pytest.raises(ValueError, match=f"there are .*`{prefix}/{known}`"):
        make(f"{prefix}/Foo-v1")


@pytest.mark.parametrize("name", ["ant", "Pendulum-v1", "", "/", "gym/Pendulum-v1"])
def test_a_name_without_a_known_library_is_refused_with_those_there_are(
    name: str,
) -> None:
    with pytest.raises(ValueError, match="`xminigrid/` or `eqrl/`"):
        make(name)


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"backend='sprong'.*'spring'"):
        make("brax/fast", backend="sprong")


@pytest.mark.parametrize(
    "name, options",
    [
        ("gymnax/Pendulum-v1", {"backend": "spring"}),
        ("eqrl/Point", {"backend": "spring"}),
        ("eqrl/Point", {"state_descriptor": _speed}),
    ],
)
def test_an_option_is_refused_where_there_is_none(
    name: str, options: dict[str, Any]
) -> None:
    (option,) = options
    with pytest.raises(ValueError, match=f"`{option}` is not an option of `{name}`"):
        make(name, **options)


@pytest.mark.parametrize("name", ["brax/fast", "gymnax/Pendulum-v1", "eqrl/Point"])
def test_max_steps_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="max_steps=0"):
        make(name, max_steps=0)


def test_an_unknown_option_is_refused() -> None:
    misspelled: dict[str, Any] = {"max_step": 7}
    with pytest.raises(TypeError, match="max_step"):
        make("eqrl/Point", **misspelled)


def test_an_environment_is_named_as_it_is_made_and_printed_with_its_values() -> None:
    for name in ("brax/fast", "gymnax/Pendulum-v1", "eqrl/Point"):
        assert name_of(TimeLimit(make(name), 9)) == name
    pendulum: Any = make("gymnax/Pendulum-v1")
    # It is no environment of a library.
    assert name_of(Clock()) == "Clock"
    text = repr(pendulum)
    assert "environment=Pendulum," in text and "max_speed=8.0," in text
    assert "step_size=0.1, max_steps=7" in repr(Point(max_steps=7))


def test_an_unknown_attribute_of_the_module_is_an_attribute_error() -> None:
    import eqrl.envs

    missing = "MujocoEnv"
    with pytest.raises(AttributeError, match=missing):
        getattr(eqrl.envs, missing)
