import dataclasses
import types
import typing
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import equinox as eqx
import jax
from jaxtyping import AbstractArray, Array, Shaped, jaxtyped


if TYPE_CHECKING:
    # `Stacked[SACState, "population"]` is `SACState` to a static type checker.
    from typing import Annotated as Stacked
else:

    class _StackedMeta(type):
        # A lambda: type checking would wrap a function and give it separate axis names
        # from those of the function whose arguments are checked.
        __instancecheck__ = lambda cls, value: (
            (cls.kind is None or isinstance(value, cls.kind))
            and all(
                isinstance(array, cls.leading)
                for array in jax.tree.leaves(eqx.filter(value, eqx.is_array))
            )
            and _has_members(value)
        )

    class Stacked:
        """Annotation of a stack: `Stacked[SACState, "population"]`.

        A static type checker sees `SACState`. If types are checked at run time, each
        array in the value must have the named axis as its first, axes of one name must
        agree within a call, and without that axis its fields must have the shapes that
        they are annotated with.
        """

        def __class_getitem__(cls, item: tuple[Any, str]) -> type:
            kind, axis = item
            kind = get_origin(kind) or kind
            unions = (typing.Union, types.UnionType)
            if kind is Any or isinstance(kind, TypeVar) or kind in unions:
                kind = None
            name = f"Stacked[{getattr(kind, '__name__', 'Any')}, {axis!r}]"
            leading = Shaped[Array, f"{axis} ..."]
            return _StackedMeta(name, (), {"kind": kind, "leading": leading})


def _has_members(stack: object) -> bool:
    """Whether an element of a stack is what the fields of its modules declare."""
    declared: list[bool] = []

    def member_of(arrays: Any) -> None:
        member = eqx.combine(arrays, static)
        declared.append(_is_as_declared(member))

    arrays, static = eqx.partition(stack, eqx.is_array)
    # Nothing is computed: the elements are known by their shapes only.
    elements = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), arrays
    )
    jax.eval_shape(member_of, elements)
    return all(declared)


def _is_as_declared(tree: object) -> bool:
    if isinstance(tree, (tuple, list)):
        return all(map(_is_as_declared, tree))
    if not isinstance(tree, eqx.Module) or not dataclasses.is_dataclass(tree):
        return True
    fields = [
        (getattr(tree, field.name, None), field.type)
        for field in dataclasses.fields(tree)
    ]
    # Each module has its own axis names.
    with jaxtyped("context"):
        if not all(_fits(value, declared) for value, declared in fields):
            return False
    # Other modules within it may be stacks themselves, such as critics.
    return all(_is_as_declared(x) for x, _ in fields if isinstance(x, tuple))


def _fits(value: object, declared: Any) -> bool:
    """Whether a value has the shape that is declared; true if none is."""
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        alternatives = typing.get_args(declared)
    else:
        alternatives = (declared,)
    arrays = [x for x in alternatives if _is_array_type(x)]
    if not eqx.is_array(value) or len(arrays) == 0:
        return True
    if any(not _is_array_type(x) and x not in _SCALARS for x in alternatives):
        return True
    return any(isinstance(value, x) for x in arrays)


# Types that may accompany arrays in a union.
_SCALARS = (float, int, bool, complex, type(None))


def _is_array_type(declared: object) -> bool:
    return isinstance(declared, type) and issubclass(declared, AbstractArray)
