"""Checks that an environment does what its `spec` says."""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.extend.core import Var
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._pytree.control_flow import filter_scan
from .._pytree.fields import (
    PositiveInt,
    check_instance,
    check_integer,
    checked,
    is_key,
    shown,
)
from .._pytree.tree import (
    check_kept,
    described,
    is_array_shape,
    is_float_shape,
    parts,
    tree_is_finite,
    tree_where,
)
from .._types.custom_types import PyTree
from .._types.data import Action, Box, EnvSpec
from .._types.typecheck import plays_envs
from ._base import AnyEnv, Outcome
from ._host import HostState, failure_of, is_host


def check_env(env: AnyEnv) -> None:
    """Checks that an environment does what its `spec` says.

    Only shapes and types are checked; nothing is run.
    """
    spec = env.spec
    check_instance("spec", spec, EnvSpec)
    if is_host(env) and jax.process_count() > 1:
        raise ValueError(
            "Simulators outside JAX belong to one process, but there are "
            f"{jax.process_count()}: train in each alone, without `jax.distributed`."
        )
    check_integer("spec.observation_size", spec.observation_size, least=1)
    key = jax.eval_shape(lambda: jr.key(0))
    begun = eqx.filter_eval_shape(env.reset, key=key)
    if not (isinstance(begun, tuple) and len(begun) == 2):
        given = described(begun)
        raise ValueError(f"`reset` gives {given}, not a state and an observation.")
    state, observation = begun
    if parts(state, HostState) and not is_host(env):
        what = f"{type(env).__name__} contains a simulator outside JAX"
        raise ValueError(f"{what}; derive it from `eqrl.envs.AbstractEnvWrapper`.")
    _check_array("`reset` gives an observation", observation, spec, "observation_size")
    same_flag: list[bool] = []

    def step(
        state: PyTree, action: Action, key: PRNGKeyArray
    ) -> tuple[PyTree, Outcome]:
        given = env.step(state, action, key=key)
        if not (isinstance(given, tuple) and [*map(type, given[1:])] == [Outcome]):
            raise ValueError(
                f"`step` gives {shown(given)}, not a state and an `eqrl.envs.Outcome`."
            )
        # While tracing, one object is one array of the program.
        same_flag[:] = [given[1].terminated is given[1].truncated]
        return given

    after, outcome = eqx.filter_eval_shape(step, state, spec.action.struct, key)
    what = f"`step` of {type(env).__name__} gives another"
    check_kept(f"{what} state", state, after, source="reset")
    seen = outcome.observation
    _check_array("`step` gives an observation", seen, spec, "observation_size")
    check_kept(f"{what} observation", observation, seen, source="reset")
    _check_array("`step` gives a reward", outcome.reward, spec, "reward_size")
    for name in ("terminated", "truncated"):
        flag = getattr(outcome, name)
        if not is_array_shape(flag) or flag.shape != () or flag.dtype != jnp.bool_:
            raise ValueError(
                f"`step` gives a `{name}` of {described(flag)}; it must be an array of "
                "type bool and of shape (), such as `jnp.asarray(False)`."
            )
    # Two equal constants, as in an environment that never ends, are one object, too.
    if same_flag == [True] and _varies(env, state, key):
        raise ValueError(
            "`step` gives one array for both `terminated` and `truncated`, so they are "
            "true together; an episode ends in a state without value or at a time "
            "limit. If there is but one `done`, give `jnp.array(False)` for the other."
        )
    for name in ("state_descriptor", "critic_observation"):
        given = eqx.filter_eval_shape(getattr(env, name), state)
        size = getattr(spec, f"{name}_size")
        if (given is None) != (size is None):
            raise ValueError(f"`spec.{name}_size={size}`, but `{name}` gives {given}.")
        if given is not None:
            _check_array(f"`{name}` gives one", given, spec, f"{name}_size")


def _varies(env: AnyEnv, state: PyTree, key: PyTree) -> bool:
    """Whether `terminated` depends on the state, the action or the key."""

    def terminated(state: PyTree, action: Action, key: PRNGKeyArray) -> Bool[Array, ""]:
        return env.step(state, action, key=key)[1].terminated

    action: PyTree = env.spec.action.struct
    closed, _, _ = eqx.filter_make_jaxpr(terminated)(state, action, key)
    # Variables of the program that depend on its inputs, collected in its order.
    (flag,), known = closed.jaxpr.outvars, set(closed.jaxpr.invars)
    for equation in closed.jaxpr.eqns:
        if any(isinstance(x, Var) and x in known for x in equation.invars):
            known.update(equation.outvars)
    return isinstance(flag, Var) and flag in known


def _check_array(what: str, value: object, spec: EnvSpec, field: str) -> None:
    """Checks the shape and type of an array whose size is a field of the `spec`."""
    size, kind, is_kind = getattr(spec, field), "floats", is_float_shape(value)
    shape = () if size is None else (size,)
    advice = "give a scalar" if size is None else "flatten and cast it"
    if field == "observation_size":
        advice += ", with `spec.observation_dtype` as its type"
        if spec.observation_dtype != "float32":
            kind = spec.observation_dtype
            is_kind = is_array_shape(value) and value.dtype == kind
    if not is_array_shape(value) or value.shape != shape or not is_kind:
        advice += ". A vector of length 1 is not a scalar"
        if size is None and is_array_shape(value) and value.shape == ():
            advice = "cast it, as by `.astype(float)`"
        raise ValueError(
            f"{what} of {described(value)}, but `spec.{field}={size}` asks for an "
            f"array of {kind} of shape {shape}; {advice}."
        )


# Values of an element of an action: the ends of its range, and halfway to them.
_ELEMENTS = (-1.0, -0.5, 0.5, 1.0)


@checked
def check(
    env: AnyEnv,
    *,
    key: PRNGKeyArray,
    num_steps: PositiveInt = 300,
    actions: bool = True,
) -> None:
    """Plays an environment at random and reports flaws that types miss.

    It looks for steps that both terminate and truncate; a time limit, `spec.max_steps`,
    that is not respected; rewards, observations and descriptors that are not finite;
    and elements of an action, or ends of their range, that never make a difference.

    **Arguments:**

    - `env`: the environment, written in JAX.
    - `key`: for the environment and the actions.
    - `num_steps`: steps to play, at least 1. A longer time limit is not checked.
    - `actions`: whether to look for actions without an effect; `False` if some are
        meant to have none.

    Raises a `ValueError` that names all flaws. Shapes and types that differ from `spec`
    also raise one, as at the beginning of training.
    """
    check_env(env)
    if is_host(env):
        raise ValueError(
            "`check` plays environments written in JAX, several times from one state, "
            "but the simulators of this one have one present; "
            "`gymnasium.utils.env_checker.check_env` checks those of Gymnasium."
        )
    flaws, differs = jax.device_get(_play(env, num_steps, actions, key))
    found = _described_flaws(flaws, differs, env.spec)
    if found:
        raise ValueError(
            f"{type(env).__name__}, played for {num_steps} steps: " + "; ".join(found)
        )


def _described_flaws(
    flaws: dict[str, Bool[np.ndarray, " steps"]],
    differs: Bool[np.ndarray, "steps 3 elements"],
    spec: EnvSpec,
) -> list[str]:
    texts = {
        "both_flags": "`terminated` and `truncated` are both true at step {}, but an "
        "episode ends in one way: make it `truncated & ~terminated`",
        "beyond_limit": f"an episode continues past `spec.max_steps={spec.max_steps}` "
        "at step {}: make `truncated` true there, or wrap it in `eqrl.envs.TimeLimit`",
        "reward": "the reward of step {} is not finite",
        "observation": "the observation of step {} is not finite",
        "descriptor": "the descriptor of the state after step {} is not finite",
    }
    found = [
        text.format(int(np.argmax(flaws[name])) + 1)
        for name, text in texts.items()
        if np.any(flaws[name])
    ]
    for index, (low, middle, high) in enumerate(np.any(differs, axis=0).T):
        if not (low or middle or high):
            found.append(
                f"element {index} of the action never makes a difference: is "
                "`spec.action` larger than what `step` reads?"
            )
            continue
        found += [
            f"all values in {interval} of element {index} of the action do the same: "
            "does `step` rescale it from [-1, 1]?"
            for is_used, interval in ((low, "[-1, -0.5]"), (high, "[0.5, 1]"))
            if not is_used
        ]
    return found


def prepare(*envs: AnyEnv) -> None:
    """Prepares environments for a training.

    Plays each, without looking at the effect of actions, if `eqrl.typecheck` was called
    with `play_envs`, and discards the failure of a simulator in an earlier program,
    which this training would raise as its own.
    """
    for env in {id(env): env for env in envs}.values():
        if is_host(env):
            failure_of(env)
        elif plays_envs():
            # Actions may rightly have no effect, as in `DisabledActions`.
            check(env, key=jr.key(0), actions=False)


@eqx.filter_jit
def _play(
    env: AnyEnv, num_steps: int, actions: bool, key: PRNGKeyArray
) -> tuple[dict[str, Bool[Array, " steps"]], Bool[Array, "steps 3 elements"]]:
    """Plays random actions; flags each step's flaws and the actions with an effect."""
    spec = env.spec

    def step(
        carry: tuple[PyTree, Int[Array, ""]], index: Int[Array, ""]
    ) -> tuple[tuple[PyTree, Int[Array, ""]], tuple[PyTree, Bool[Array, "3 elements"]]]:
        state, time = carry
        # 0 is the index of the first reset.
        action_key, reset_key = jr.split(jr.fold_in(key, 2 * index + 1))
        step_key = jr.fold_in(key, 2 * index + 2)
        action = spec.action.sample(key=action_key)
        after, outcome = env.step(state, action, key=step_key)
        over = outcome.terminated | outcome.truncated
        late = spec.max_steps is not None and time + 1 >= spec.max_steps
        flaws = {
            "both_flags": outcome.terminated & outcome.truncated,
            "beyond_limit": late & ~over,
            "reward": ~tree_is_finite(outcome.reward),
            "observation": ~tree_is_finite(
                (outcome.observation, env.critic_observation(after))
            ),
            "descriptor": ~tree_is_finite(env.state_descriptor(after)),
        }
        differs = jnp.zeros((3, 0), bool)
        if actions and isinstance(spec.action, Box):
            differs = _differences(env, state, action, step_key)
        fresh, _ = env.reset(key=reset_key)
        time = jnp.where(over, 0, time + 1)
        return (tree_where(over, fresh, after), time), (flaws, differs)

    state, _ = env.reset(key=jr.fold_in(key, 0))
    carry = (state, jnp.zeros((), int))
    return filter_scan(step, carry, jnp.arange(num_steps))[1]


def _differences(
    env: AnyEnv, state: PyTree, action: Float[Array, " act"], key: PRNGKeyArray
) -> Bool[Array, "3 act"]:
    """Flags elements whose low, middle or high values make a difference."""

    def reached(index: Int[Array, ""], value: Float[Array, ""]) -> PyTree:
        # The same random draws each time, so that only the action makes a difference.
        same_key = jr.clone(key)
        after = env.step(state, action.at[index].set(value), key=same_key)
        # Keys cannot be compared, but their data can.
        return [
            jr.key_data(x) if is_key(x) else x
            for x in jax.tree.leaves(eqx.filter(after, eqx.is_array))
        ]

    values = jnp.asarray(_ELEMENTS, action.dtype)
    # In sequence: a `vmap` would hold one environment for each element and value.
    results = lax.map(
        lambda index: lax.map(lambda value: reached(index, value), values),
        jnp.arange(action.shape[0]),
    )

    def apart(first: int, second: int) -> Bool[Array, " act"]:
        each = []
        for leaf in results:
            x, y = leaf[:, first], leaf[:, second]
            # `nan` counts as equal to `nan`.
            same = (x == y) | ((x != x) & (y != y))
            each.append(jnp.any(~same.reshape(x.shape[0], -1), axis=1))
        return jnp.any(jnp.stack(each), axis=0)

    return jnp.stack([apart(0, 1), apart(1, 2), apart(2, 3)])
