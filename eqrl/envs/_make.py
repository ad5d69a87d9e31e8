import contextlib
import dataclasses
import difflib
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

from jaxtyping import Array, Shaped

from ._base import AbstractEnv
from ._point import Point
from ._time_limit import TimeLimit


_BACKENDS = ["generalized", "mjx", "positional", "spring"]
_OWN_NAMES = ["Point"]
_LIBRARIES_WITH = {"backend": "brax", "state_descriptor": "brax and gymnax"}


def make(
    name: str,
    *,
    backend: str | None = None,
    max_steps: int | None = None,
    state_descriptor: Callable[[Any], Shaped[Array, " descriptor"]] | None = None,
) -> AbstractEnv[Any]:
    """An environment by its name.

    Equal arguments give environments that share their compilations.

    ```python
    ant = eqrl.envs.make("brax/ant", backend="spring", max_steps=1000)
    pendulum = eqrl.envs.make("gymnax/Pendulum-v1")
    point = eqrl.envs.make("eqrl/Point")
    ```

    **Arguments:**

    - `name`: `brax/...`, `gymnax/...` or `eqrl/...`, then the name there.
    - `backend`: of brax: `generalized`, `mjx`, `positional` or `spring`, the default.
    - `max_steps`: the time limit; by default 1000 for brax, else the environment's own.
    - `state_descriptor`: for brax and gymnax, from the environment's own state to a
        vector that describes it as behavior. By default brax's walkers give the
        torso's position, and others none. Pass a function with a name: each new lambda
        compiles anew.

    **Returns:**

    The environment. An option that it does not have is a `ValueError`.
    """
    library, _, rest = name.partition("/")
    if library == "brax":
        return _make_brax(rest, backend, max_steps, state_descriptor)
    if library == "gymnax":
        _check_inapplicable(name, backend=backend)
        return _make_gymnax(rest, max_steps, state_descriptor)
    if library == "eqrl":
        _check_inapplicable(name, backend=backend, state_descriptor=state_descriptor)
        _check_name("eqrl/", rest, _OWN_NAMES)
        return Point() if max_steps is None else Point(max_steps=max_steps)
    near = _near_names(name)
    suggestion = f" Did you mean {', '.join(near)}?" if near else ""
    raise ValueError(
        f"`name={name!r}` must begin with `brax/`, `gymnax/` or `eqrl/`, as in "
        f"`brax/ant`.{suggestion}"
    )


def _near_names(name: str) -> list[str]:
    from ._gymnax import gymnax_names

    known = [f"brax/{each}" for each in _import_brax().brax_names()]
    known += [f"gymnax/{each}" for each in gymnax_names()]
    known += [f"eqrl/{each}" for each in _OWN_NAMES]
    # Of a bare name the library is missing; of a full one, it may be misspelled.
    by_key = {
        key.lower(): f"`{each}`"
        for each in known
        for key in (each, each.partition("/")[2])
    }
    near = difflib.get_close_matches(name.lower(), by_key, n=3)
    return list(dict.fromkeys(by_key[key] for key in near))


def _import_brax() -> ModuleType:
    # MuJoCo, which brax imports, prints that it does without Warp.
    with contextlib.redirect_stdout(io.StringIO()):
        from . import _brax

    return _brax


def _make_brax(
    name: str,
    backend: str | None,
    max_steps: int | None,
    state_descriptor: Callable[[Any], Shaped[Array, " descriptor"]] | None,
) -> AbstractEnv[Any]:
    brax = _import_brax()
    _check_name("brax/", name, brax.brax_names())
    backend = "spring" if backend is None else backend
    if backend not in _BACKENDS:
        raise ValueError(f"`{backend=}` must be one of {_quoted('', _BACKENDS)}.")
    environment = brax.brax_environment(name, backend)
    env = brax.BraxEnv(environment, state_descriptor=state_descriptor)
    return TimeLimit(env, 1000 if max_steps is None else max_steps)


def _make_gymnax(
    name: str,
    max_steps: int | None,
    state_descriptor: Callable[[Any], Shaped[Array, " descriptor"]] | None,
) -> AbstractEnv[Any]:
    from ._gymnax import GymnaxEnv, gymnax_environment, gymnax_names

    _check_name("gymnax/", name, gymnax_names())
    environment = gymnax_environment(name)
    params = environment.default_params
    if max_steps is not None:
        if max_steps < 1:
            raise ValueError(f"`{max_steps=}` must be at least 1.")
        params = dataclasses.replace(params, max_steps_in_episode=max_steps)
    return GymnaxEnv(environment, params, state_descriptor=state_descriptor)


def _check_inapplicable(name: str, **options: Any) -> None:
    for option, value in options.items():
        if value is not None:
            raise ValueError(
                f"`{option}` is not an option of `{name}`; leave it out. "
                f"`{option}` is for environments of {_LIBRARIES_WITH[option]}."
            )


def _check_name(prefix: str, name: str, names: list[str]) -> None:
    if name in names:
        return
    by_lower_case = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=3)
    if near:
        names = [by_lower_case[lower_case] for lower_case in near]
        suggestion = f"did you mean {_quoted(prefix, names)}?"
    else:
        suggestion = f"there are {_quoted(prefix, names)}."
    raise ValueError(f"There is no environment `{prefix}{name}`; {suggestion}")


def _quoted(prefix: str, names: list[str]) -> str:
    return ", ".join(f"`{prefix}{name}`" for name in names)
