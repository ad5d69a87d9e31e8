import contextlib
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._pytree.fields import Count, PositiveInt, checked, converted, shown
from .._types.installed import needed
from ._base import (
    LIBRARIES,
    AbstractEnv,
    AnyEnv,
    StateDescriptor,
    adapter_of,
    innermost,
)
from ._point import Point
from ._wrappers import DisabledActions


# To add an environment of the library's own, add its name and class here.
_OWN = {"Point": Point}

_LEGS = (1, 2, 3, 4)

# EnvPool has more than a thousand.
_MOST_NAMES = 50

# Where names are searched, and how near they must be. Libraries of the second group
# take four to twelve seconds to import, so they are asked only if the first has no
# such name.
_SEARCHED = (
    (("eqrl", "craftax", "envpool", "gymnasium", "gymnax", "pgx", "xminigrid"), 0.8),
    (("brax", "jumanji", "navix", "playground"), 0.6),
)


@checked
def make(
    name: str,
    *,
    backend: str | None = None,
    impl: str | None = None,
    action_repeat: PositiveInt | None = None,
    max_steps: Count | None = None,
    state_descriptor: StateDescriptor | str | tuple[str, ...] | None = None,
    num_processes: PositiveInt | None = None,
    num_threads: PositiveInt | None = None,
    observation: str | tuple[str, ...] | None = None,
    critic_observation: str | tuple[str, ...] | None = None,
    options: Mapping[str, object] | None = None,
) -> AnyEnv:
    """Makes an environment from its name.

    Equal arguments give environments that share their compilations.

    ```python
    ant = eqrl.envs.make("brax/ant", backend="mjx", max_steps=1000)
    pendulum = eqrl.envs.make("gymnax/Pendulum-v1")
    cheetah = eqrl.envs.make("gymnasium/HalfCheetah-v5", state_descriptor="x")
    point = eqrl.envs.make("eqrl/Point")
    ```

    **Arguments:**

    - `name`: `brax/...`, `craftax/...`, `envpool/...`, `gymnasium/...`, `gymnax/...`,
        `jumanji/...`, `navix/...`, `pgx/...`, `playground/...`, `xminigrid/...` or
        `eqrl/...`, followed by the name in that library.
    - `backend`: for brax: `generalized`, `mjx`, `positional` or `spring`. By default
        brax's own default, `generalized`.
    - `impl`: for Playground: `jax` or `warp`, its simulator for GPUs; by default `jax`.
    - `action_repeat`: for Playground: how often each action is taken; by default as
        often as the task specifies.
    - `max_steps`: the time limit, at least 1; by default the environment's own, or 1000
        if it has none; none at all in Gymnasium and EnvPool.
    - `state_descriptor`: for libraries in JAX, a function of the environment's own
        state that returns a vector that describes the behavior. By default brax's
        walkers have the torso's position and others have none. Pass a named function:
        each new lambda compiles again. For this and the following arguments in other
        libraries, see `eqrl.envs.GymnasiumEnv` and `eqrl.envs.EnvPoolEnv`.
    - `num_processes`: for Gymnasium: how many processes run the simulators.
    - `num_threads`: for EnvPool: how many threads run them.
    - `observation`: for Gymnasium, EnvPool, Playground and Jumanji: the keys or fields
        to see of observations that have several; for Playground by default `state`.
    - `critic_observation`: for Gymnasium, EnvPool and Playground: the keys that critics
        see in place of these; for Playground by default `privileged_state`.
    - `options`: for all but brax, gymnax and `eqrl/`: arguments of the environment, or
        fields of its parameters, by its own names.

    **Returns:**

    The environment. An option that it does not have raises a `ValueError`, and a
    missing library raises a `ModuleNotFoundError` that says how to install it.
    """
    if not isinstance(name, str):
        advice = (
            "it is an environment already; use it as it is"
            if isinstance(name, AbstractEnv)
            else "it must be a name, such as `brax/ant`"
        )
        raise ValueError(
            f"`name={shown(name)}` is of type {type(name).__name__}; {advice}. An "
            "environment of another library goes into its adapter, such as "
            "`eqrl.envs.BraxEnv`; see `eqrl.envs`."
        )
    prefix, _, rest = name.partition("/")
    if prefix not in (*LIBRARIES, "eqrl"):
        *others, last = (f"`{known}/`" for known in (*LIBRARIES, "eqrl"))
        known, near = list[str](), list[str]()
        for libraries, cutoff in _SEARCHED:
            for library in libraries:
                # The names of a library that is not installed are unknown.
                with contextlib.suppress(ModuleNotFoundError):
                    known += full_names(library)
            near = _near(name, known, cutoff)
            if near:
                break
        suggestion = f" Did you mean {', '.join(near)}?" if near else ""
        raise ValueError(
            f"`name={name!r}` must begin with {', '.join(others)} or {last}, as in "
            f"`brax/ant`; your own is `package.module:make` on the command line, "
            f"and is used as it is in Python.{suggestion}"
        )
    library = LIBRARIES.get(prefix)
    given = {
        "backend": backend,
        "impl": impl,
        "action_repeat": action_repeat,
        "state_descriptor": state_descriptor,
        "num_processes": num_processes,
        "num_threads": num_threads,
        "observation": observation,
        "critic_observation": critic_observation,
        "options": options,
    }
    given = {key: value for key, value in given.items() if value is not None}
    for option in given:
        if library is None or option not in library.options:
            having = [key for key, each in LIBRARIES.items() if option in each.options]
            raise ValueError(
                f"`{option}` is not an option of `{name}`; leave it out. "
                f"`{option}` is for environments of {' and '.join(having)}."
            )
    if library is None:
        check_known(prefix, rest, list(_OWN))
        return _OWN[rest]() if max_steps is None else _OWN[rest](max_steps=max_steps)
    with needed(f"`{name}`", prefix):
        adapter = library.load()
        names = adapter.names()
    # Gymnasium imports the module of a name such as `package:Walker-v0` first.
    if prefix != "gymnasium" or ":" not in rest:
        check_known(prefix, rest, names)
    return adapter.make(rest, max_steps=max_steps, **given)


def name_of(env: AnyEnv) -> str:
    """The name of an environment in `make`, within any wrappers.

    If `make` does not know it, that is the name of its class.
    """
    env = innermost(env)
    adapter = adapter_of(env)
    if adapter is not None:
        return adapter.name_of(env)
    own = (f"eqrl/{name}" for name, kind in _OWN.items() if type(env) is kind)
    return next(own, type(env).__name__)


def descriptor_names(env: AnyEnv) -> tuple[str, ...] | None:
    """The names of the elements of the state descriptor, if they are known."""
    env = innermost(env)
    if isinstance(env, Point):
        return ("x", "y")
    adapter = adapter_of(env)
    return None if adapter is None else adapter.descriptor_names(env)


def full_names(library: str) -> list[str]:
    """The names of a library's environments as `make` takes them.

    `eqrl` has its own. Raises a `NotInstalledError` if the library is not installed.
    """
    if library == "eqrl":
        return [f"eqrl/{name}" for name in _OWN]
    with needed(f"`{library}/...`", library):
        return [f"{library}/{name}" for name in LIBRARIES[library].load().names()]


def ant_with_broken_legs(
    legs: Sequence[int], *, backend: str | None = None, max_steps: int | None = None
) -> DisabledActions[Any]:
    """Brax's ant with some legs that are not actuated.

    Hip and ankle of a broken leg get no torque, whatever an agent chooses. The mask of
    broken legs is a leaf, so ants with other broken legs share their compilations.

    Legs are numbered as in brax's model, in which `hip_1` and `ankle_1` are the joints
    of leg 1. Seen from above, with x to the right, the direction that brax rewards, and
    y upwards, they lie counter-clockwise: leg 1 to the upper right, leg 2 to the upper
    left, leg 3 to the lower left, leg 4 to the lower right. The elements of the action
    are in another order: the first two are those of leg 4.

    **Arguments:**

    - `legs`: the broken legs, numbered 1 to 4, possibly none.
    - `backend`, `max_steps`: as in `eqrl.envs.make`.

    **Returns:**

    `make("brax/ant", ...)` inside an `eqrl.envs.DisabledActions`.
    """
    legs = converted("legs", tuple, legs, f"must be a sequence of some of {_LEGS}.")
    wrong = [leg for leg in legs if leg not in _LEGS]
    if wrong:
        raise ValueError(f"`legs` names {wrong}, but an ant has the legs {_LEGS}.")
    env: Any = make("brax/ant", backend=backend, max_steps=max_steps)
    # Within the time limit and the adapter.
    system = env.env.environment.sys
    # Leg 1 is the link `aux_1`, the thigh, and its child without a name.
    thighs = {system.link_names.index(f"aux_{leg}"): leg for leg in _LEGS}
    link_of_joint = np.asarray(system.dof_link())
    disabled = []
    for element, joint in enumerate(np.asarray(system.actuator.qd_id)):
        link = int(link_of_joint[joint])
        thigh = link if link in thighs else int(system.link_parents[link])
        if thighs[thigh] in legs:
            disabled.append(element)
    return DisabledActions(env, disabled)


def check_known(prefix: str, name: str, names: list[str]) -> None:
    """Checks that a library has an environment of this name."""
    if name in names:
        return
    full = [f"{prefix}/{known}" for known in names]
    near = _near(name, full)
    more = "" if len(full) <= _MOST_NAMES else f" and {len(full) - _MOST_NAMES} more"
    suggestion = (
        f"did you mean {', '.join(near)}?"
        if near
        else f"there are {', '.join(f'`{each}`' for each in full[:_MOST_NAMES])}{more}."
    )
    raise ValueError(f"There is no environment `{prefix}/{name}`; {suggestion}")


def _near(name: str, known: list[str], cutoff: float = 0.6) -> list[str]:
    """The names, in backticks, that are near to one with or without its library."""
    # Capitals and the version do not matter here. The last of several versions is the
    # newest.
    as_key = lambda text: re.sub(r"-v\d+$", "", text.lower())
    by_key: dict[str, dict[str, str]] = {}
    for each in known:
        library, _, short = each.partition("/")
        for key in (each, short):
            by_key.setdefault(as_key(key), {})[library] = f"`{each}`"
    keys = difflib.get_close_matches(as_key(name), by_key, n=3, cutoff=cutoff)
    # The same task of several libraries before others.
    if keys and as_key(name) == keys[0]:
        keys = keys[:1]
    return list(dict.fromkeys(each for key in keys for each in by_key[key].values()))
