import contextlib
import difflib

from .._pytree.fields import checked, shown
from .._types.installed import needed
from ._base import LIBRARIES, AbstractEnv, AnyEnv, StateDescriptor, check_step_limit
from ._point import Point


# To add an environment of the library's own, add its name and class here.
_OWN = {"Point": Point}


@checked
def make(
    name: str,
    *,
    backend: str | None = None,
    max_steps: int | None = None,
    state_descriptor: StateDescriptor | None = None,
) -> AnyEnv:
    """Makes an environment from its name.

    Equal arguments give environments that share their compilations.

    ```python
    ant = eqrl.envs.make("brax/ant", backend="mjx", max_steps=1000)
    pendulum = eqrl.envs.make("gymnax/Pendulum-v1")
    point = eqrl.envs.make("eqrl/Point")
    ```

    **Arguments:**

    - `name`: `brax/...`, `gymnax/...` or `eqrl/...`, followed by the name there.
    - `backend`: of brax: `generalized`, `mjx`, `positional` or `spring`. By default
        brax's own default, `generalized`.
    - `max_steps`: the time limit, at least 1; by default 1000 for brax, otherwise the
        environment's own.
    - `state_descriptor`: for brax and gymnax, a function of the environment's own state
        that returns a vector which describes the behavior. By default brax's walkers
        have the torso's position and others have none. Pass a named function: each new
        lambda compiles again.

    **Returns:**

    The environment. An option that it does not have is a `ValueError`, and a library
    that is not installed a `ModuleNotFoundError`, which says how to install it.
    """
    if not isinstance(name, str):
        is_env = isinstance(name, AbstractEnv)
        advice = (
            "it is an environment already; use it as it is"
            if is_env
            else "it must be a name, such as `brax/ant`"
        )
        raise ValueError(
            f"`name={shown(name)}` is of type {type(name).__name__}; {advice}. An "
            "environment of another library goes into `eqrl.envs.BraxEnv` or "
            "`eqrl.envs.GymnaxEnv`."
        )
    if max_steps is not None:
        check_step_limit(max_steps)
    prefix, _, rest = name.partition("/")
    if prefix not in (*LIBRARIES, "eqrl"):
        *others, last = (f"`{known}/`" for known in (*LIBRARIES, "eqrl"))
        near = _near_names(name)
        suggestion = f" Did you mean {', '.join(near)}?" if near else ""
        raise ValueError(
            f"`name={name!r}` must begin with {', '.join(others)} or {last}, as in "
            f"`brax/ant`.{suggestion}"
        )
    library = LIBRARIES.get(prefix)
    options = {"backend": backend, "state_descriptor": state_descriptor}
    given = {key: value for key, value in options.items() if value is not None}
    for option in given:
        if library is None or option not in library.options:
            having = [key for key, each in LIBRARIES.items() if option in each.options]
            raise ValueError(
                f"`{option}` is not an option of `{name}`; leave it out. "
                f"`{option}` is for environments of {' and '.join(having)}."
            )
    if library is None:
        _check_known(prefix, rest, list(_OWN))
        return _OWN[rest]() if max_steps is None else _OWN[rest](max_steps=max_steps)
    with needed(f"`{name}`", prefix):
        adapter = library.load()
    _check_known(prefix, rest, adapter.names())
    return adapter.make(rest, max_steps=max_steps, **given)


def _near_names(name: str) -> list[str]:
    known = [f"eqrl/{each}" for each in _OWN]
    for prefix, library in LIBRARIES.items():
        # The names of a library that is not installed are unknown.
        with contextlib.suppress(ModuleNotFoundError):
            known += [f"{prefix}/{each}" for each in library.load().names()]
    # A bare name lacks its library; a full one may be misspelled.
    by_key = {
        key.lower(): f"`{each}`"
        for each in known
        for key in (each, each.partition("/")[2])
    }
    near = difflib.get_close_matches(name.lower(), by_key, n=3)
    return list(dict.fromkeys(by_key[key] for key in near))


def _check_known(prefix: str, name: str, names: list[str]) -> None:
    """Checks that a library has an environment of this name."""
    if name in names:
        return
    # In lower case, so that a name in other capitals is near.
    full = {known.lower(): f"`{prefix}/{known}`" for known in names}
    near = difflib.get_close_matches(name.lower(), full, n=3)
    suggestion = (
        f"did you mean {', '.join(full[key] for key in near)}?"
        if near
        else f"there are {', '.join(full.values())}."
    )
    raise ValueError(f"There is no environment `{prefix}/{name}`; {suggestion}")
