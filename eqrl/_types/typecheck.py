"""Checks of types at run time: which packages are checked, and how strictly.

It is imported first, so that everything after it can be checked.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import install_import_hook


_VARIABLE = "EQRL_TYPECHECK"
_ON, _OFF = ("1", "true"), ("", "0", "false")

# Whether `train` plays environments before it trains in them.
_plays_envs = False


def check_own_types() -> None:
    """Checks the types of eqrl at run time if the environment variable asks for it."""
    value = os.environ.get(_VARIABLE, "").strip().lower()
    if value in _ON:
        install_import_hook("eqrl", f"{__name__}.checked_when_called")
    elif value not in _OFF:
        raise ValueError(
            f"The environment variable `{_VARIABLE}={os.environ[_VARIABLE]}` must be 1 "
            "or true, or 0, false or nothing."
        )


def checked_when_called(function: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype.beartype(function)`, made at its first call.

    Making it takes about a millisecond for each of a thousand functions, and a program
    only calls a few of them.
    """
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def check(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if checked is None:
            # Imported here because importing it is slow.
            import beartype

            checked = beartype.beartype(function)
        return checked(*args, **kwargs)

    return check


def typecheck(
    *packages: str, strict: bool = False, play_envs: bool | None = None
) -> None:
    """Checks types and shapes at run time in your own packages.

    Call it before they are imported, or first in their `__init__.py`. Every function
    and every dataclass in them is checked against its annotations whenever it is
    called; within `jit` that is while it is traced, so compiled programs are the same
    and equally fast. The types of eqrl itself are checked if the environment variable
    `EQRL_TYPECHECK` is `1` or `true` when it is imported.

    **Arguments:**

    - `packages`: names of packages or modules, such as `"mylab"`, with everything in
        them. The module that runs as the main program cannot be one.
    - `strict`: whether JAX refuses arrays of different ranks in one operation, types
        that would be promoted, and keys that are used twice
        (`jax_numpy_rank_promotion="raise"`, `jax_numpy_dtype_promotion="strict"`,
        `jax_debug_key_reuse=True`). This holds for the whole process.
    - `play_envs`: whether `eqrl.envs.check` plays an environment written in JAX before
        a training in it begins, without looking at the effect of actions; with `None`
        it does if `strict`.

    Raises a `ValueError` if a package has been imported already.
    """
    for name in packages:
        if not isinstance(name, str) or not all(
            part.isidentifier() for part in name.split(".")
        ):
            raise ValueError(
                f"`{name!r}` is not the name of a package; give one such as 'mylab'."
            )
        if name == "eqrl" or name.startswith("eqrl."):
            raise ValueError(
                f"The types of eqrl are checked by the environment variable "
                f"`{_VARIABLE}=1`, which is read when it is imported."
            )
        # Python has no public name for it. A package may call this first in its own
        # `__init__.py`, since the hook then still sees all of its parts.
        spec = getattr(sys.modules.get(name), "__spec__", None)
        is_being_imported = getattr(spec, "_initializing", False)
        if name in sys.modules and not is_being_imported:
            raise ValueError(
                f"`{name}` has been imported already, so nothing in it would be "
                "checked. Call `eqrl.typecheck` first."
            )
    if packages:
        install_import_hook(list(packages), "beartype.beartype")
    if strict:
        jax.config.update("jax_numpy_rank_promotion", "raise")
        jax.config.update("jax_numpy_dtype_promotion", "strict")
        jax.config.update("jax_debug_key_reuse", True)
    global _plays_envs
    _plays_envs = strict if play_envs is None else play_envs


def plays_envs() -> bool:
    """Whether environments are to be played before a training begins."""
    return _plays_envs
