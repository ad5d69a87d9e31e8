from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import equinox as eqx
import jax
from jaxtyping import Array, Shaped


if TYPE_CHECKING:
    # `Stacked[SACState, "population"]` is `SACState` to a static type checker.
    from typing import Annotated as Stacked
else:

    class _StackedMeta(type):
        # A lambda, for a function would be checked itself where this package is, with
        # axes of its own, so that what is bound here would not bind the caller's.
        __instancecheck__ = lambda cls, value: (
            (cls.kind is None or isinstance(value, cls.kind))
            and all(
                isinstance(array, cls.leading)
                for array in jax.tree.leaves(eqx.filter(value, eqx.is_array))
            )
        )

    class Stacked:
        """Says of a value that it is a stack: `Stacked[SACState, "population"]`.

        A static type checker sees `SACState`. Where shapes are checked at run time,
        every array in the value must have the named axis in front, and axes of one name
        must agree within a call.
        """

        def __class_getitem__(cls, item: tuple[Any, str]) -> type:
            kind, axis = item
            kind = get_origin(kind) or kind
            if kind is Any or isinstance(kind, TypeVar):
                kind = None
            name = f"Stacked[{getattr(kind, '__name__', 'Any')}, {axis!r}]"
            leading = Shaped[Array, f"{axis} ..."]
            return _StackedMeta(name, (), {"kind": kind, "leading": leading})
