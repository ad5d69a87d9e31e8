from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import equinox as eqx
import jax
from jaxtyping import Array, Shaped


if TYPE_CHECKING:
    # `Stacked[SACState, "population"]` is `SACState` to a static type checker.
    from typing import Annotated as Stacked
else:

    class _StackedMeta(type):
        # A lambda: type checking would wrap a function and give it axis names of its
        # own, apart from those of the function whose arguments are checked.
        __instancecheck__ = lambda cls, value: (
            (cls.kind is None or isinstance(value, cls.kind))
            and all(
                isinstance(array, cls.leading)
                for array in jax.tree.leaves(eqx.filter(value, eqx.is_array))
            )
        )

    class Stacked:
        """Annotation of a stack: `Stacked[SACState, "population"]`.

        A static type checker sees `SACState`. If types are checked at run time, each
        array in the value must have the named axis as its first, and axes of one name
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
