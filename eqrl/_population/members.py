from collections.abc import Callable
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.lax as lax
from jax.sharding import Mesh


Members = Literal["together", "in_turn"]


def choose_members(members: Members | None, mesh: Mesh | None) -> Members:
    """How to run the members of each device; `None` is decided by what devices are.

    Raises a `ValueError` where it is neither of the two ways nor `None`.
    """
    if members is None:
        device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
        return "in_turn" if device.platform == "cpu" else "together"
    if members not in get_args(Members):
        raise ValueError(
            f"`members={members!r}` must be 'together', 'in_turn' or None, which "
            "chooses between the two by the kind of device."
        )
    return members


def map_members(function: Callable[..., Any], members: Members, stacked: Any) -> Any:
    """Maps over stacks to a stack of arrays, the members together or in turn."""
    if members == "together":
        return eqx.filter_vmap(function)(*stacked)
    arrays, static = eqx.partition(stacked, eqx.is_array)
    return lax.map(lambda x: function(*eqx.combine(x, static)), arrays)
