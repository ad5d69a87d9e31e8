"""Descriptors: the part of a state that an intrinsic reward sees."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._pytree.fields import shown
from .._types.custom_types import Extras
from .._types.data import EnvSpec, Transition


StateDescriptor = (
    Literal["state_descriptor", "observation"]
    | Callable[[Float[Array, " obs"]], Float[Array, " descriptor"]]
)


def check_descriptor(descriptor: StateDescriptor) -> None:
    """Raises a `ValueError` unless `descriptor` is a word or a function."""
    words = ("state_descriptor", "observation")
    is_word = isinstance(descriptor, str) and descriptor in words
    if not is_word and not callable(descriptor):
        raise ValueError(
            f"`descriptor={shown(descriptor)}` must be 'state_descriptor', "
            "'observation', or a function of one observation."
        )


def descriptor_size(descriptor: StateDescriptor, spec: EnvSpec) -> int:
    """The number of elements of a descriptor.

    Raises a `ValueError` unless the environment gives it, or the function is one from
    an observation to a vector of floats.
    """
    if descriptor == "state_descriptor":
        if spec.state_descriptor_size is None:
            raise ValueError(
                "`descriptor='state_descriptor'`, but the environment describes no "
                "behavior (`spec.state_descriptor_size` is None). It gives "
                f"observations of size {spec.observation_size}: pass `descriptor="
                "'observation'` or a function of one, such as `lambda observation: "
                "observation[:2]`, or an environment with a descriptor, as "
                "`eqrl.envs.make(..., state_descriptor=)` makes it."
            )
        return spec.state_descriptor_size
    if descriptor == "observation":
        return spec.observation_size
    observation = jax.ShapeDtypeStruct((spec.observation_size,), jnp.result_type(float))
    described = eqx.filter_eval_shape(descriptor, observation)
    shape = getattr(described, "shape", None)
    if (
        shape is None
        or len(shape) != 1
        or shape[0] < 1
        or not jnp.issubdtype(described.dtype, jnp.floating)
    ):
        raise ValueError(
            f"The function `descriptor` gives {described} for one observation of "
            f"size {spec.observation_size}; it must give a vector of floats."
        )
    return shape[0]


def describe(
    descriptor: StateDescriptor,
    observation: Float[Array, "*batch obs"],
    state_descriptor: Float[Array, "*batch given"] | None,
) -> Float[Array, "*batch descriptor"]:
    """The descriptors of states.

    **Arguments:**

    - `descriptor`: which descriptor to take.
    - `observation`: of the states, with any leading axes.
    - `state_descriptor`: of the states, if the environment gives one.
    """
    if descriptor == "state_descriptor":
        if state_descriptor is None:
            raise ValueError(
                "`descriptor='state_descriptor'`, but these transitions have none: "
                "their environment describes no behavior."
            )
        return state_descriptor
    if descriptor == "observation":
        return observation
    rows = observation.reshape(-1, observation.shape[-1])
    described = jax.vmap(descriptor)(rows)
    return described.reshape(*observation.shape[:-1], described.shape[-1])


def as_if_left(transitions: Transition[Extras]) -> Transition[Extras]:
    """The transitions, as if each had reached the state that it began in.

    What describes the states that transitions reach then describes where they began.
    """
    return dataclasses.replace(
        transitions,
        next_observation=transitions.observation,
        next_state_descriptor=transitions.state_descriptor,
    )
