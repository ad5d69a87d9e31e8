"""Checks that an environment does what its `spec` says."""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.extend.core import Var
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._pytree.arguments import checked
from .._pytree.control_flow import filter_scan
from .._pytree.fields import PositiveInt, check_instance
from .._pytree.tree import described, is_array_shape, is_float_shape, tree_where
from .._types.custom_types import PyTree
from .._types.data import Action, Box, EnvSpec
from .._types.typecheck import plays_envs
from ._base import AnyEnv, Outcome


def check_env(env: AnyEnv) -> None:
    """Checks that an environment does what its `spec` says.

    Only shapes and types are checked; nothing is run.
    """
    spec = env.spec
    check_instance("spec", spec, EnvSpec)
    if spec.observation_size < 1:
        raise ValueError(
            f"`spec.observation_size={spec.observation_size}` must be at least 1."
        )
    key = jax.eval_shape(lambda: jr.key(0))
    state, observation = eqx.filter_eval_shape(env.reset, key=key)
    _check_vector("`reset` gives an observation", observation, spec.observation_size)
    same_flag: list[bool] = []

    def step(
        state: PyTree, action: Action, key: PRNGKeyArray
    ) -> tuple[PyTree, Outcome]:
        after, outcome = env.step(state, action, key=key)
        # While tracing, one object is one array of the program.
        same_flag[:] = [outcome.terminated is outcome.truncated]
        return after, outcome

    next_state, outcome = eqx.filter_eval_shape(step, state, spec.action.struct, key)
    _check_vector(
        "`step` gives an observation", outcome.observation, spec.observation_size
    )
    _check_reward(outcome.reward, spec.reward_size)
    _check_flag("terminated", outcome.terminated)
    _check_flag("truncated", outcome.truncated)
    if same_flag == [True] and _varies(env, state, key):
        raise ValueError(
            "`step` gives one array for both `terminated` and `truncated`, so they are "
            "true together; an episode either ends in a state without value or at a "
            "time limit. If there is but one `done`, give `jnp.array(False)` for the "
            "other."
        )
    _check_state(state, next_state)
    descriptor = eqx.filter_eval_shape(env.state_descriptor, state)
    if (descriptor is None) != (spec.state_descriptor_size is None):
        raise ValueError(
            f"`spec.state_descriptor_size={spec.state_descriptor_size}`, but "
            f"`state_descriptor` gives {descriptor}."
        )
    if descriptor is not None:
        _check_vector(
            "`state_descriptor` gives one", descriptor, spec.state_descriptor_size
        )


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


def _check_vector(what: str, value: object, size: int | None) -> None:
    if not is_float_shape(value) or value.shape != (size,):
        raise ValueError(
            f"{what} of {described(value)}, but `spec` asks for a flat vector of "
            f"floats of shape {(size,)}; flatten and cast it in the environment."
        )


def _check_reward(reward: object, reward_size: int | None) -> None:
    expected = () if reward_size is None else (reward_size,)
    if not is_float_shape(reward) or reward.shape != expected:
        raise ValueError(
            f"The reward is of {described(reward)}, but `spec.reward_size="
            f"{reward_size}` asks for an array of floats of shape {expected}; a vector "
            "of length 1 is not a scalar."
        )


def _check_flag(name: str, flag: object) -> None:
    if not is_array_shape(flag) or flag.shape != () or flag.dtype != jnp.bool_:
        raise ValueError(
            f"`step` gives a `{name}` of {described(flag)}; it must be an array of "
            "type bool and of shape ()."
        )


def _check_state(before: PyTree, after: PyTree) -> None:
    structure = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        raise ValueError(
            "The environment's state changes its structure in `step`: from "
            f"{structure} to {jax.tree.structure(after)}."
        )
    paths = jax.tree_util.tree_flatten_with_path(before)[0]
    for (path, old), new in zip(paths, jax.tree.leaves(after), strict=True):
        if is_array_shape(old) and is_array_shape(new):
            same = (old.shape, old.dtype) == (new.shape, new.dtype)
        else:
            # A state may hold a function, but no Python number, which would be an
            # array after the first step.
            same = callable(old) and old == new
        if not same:
            raise ValueError(
                f"The leaf `{jax.tree_util.keystr(path)}` of the environment's state "
                f"is of {described(old)} after `reset` but of {described(new)} after "
                "`step`; both must be arrays of the same type."
            )


# Values of an element of an action: the ends of its range, and half of the way there.
_ELEMENTS = (-1.0, -0.5, 0.5, 1.0)


class _Step(eqx.Module):
    """The flaws of a step, and the actions that made a difference in it."""

    both_flags: Bool[Array, ""]
    beyond_limit: Bool[Array, ""]
    reward_not_finite: Bool[Array, ""]
    observation_not_finite: Bool[Array, ""]
    differs: Bool[Array, "intervals elements"]


@checked
def check(
    env: AnyEnv,
    *,
    key: PRNGKeyArray,
    num_steps: PositiveInt = 300,
    actions: bool = True,
) -> None:
    """Plays an environment at random and reports flaws that no type shows.

    It looks for steps that both terminate and truncate; a time limit, `spec.max_steps`,
    that is not kept; rewards and observations that are not finite; and elements of an
    action, or ends of their range, that never make a difference.

    **Arguments:**

    - `env`: the environment.
    - `key`: for the environment and the actions.
    - `num_steps`: how many steps to play, at least 1. A longer time limit is not seen.
    - `actions`: whether to look for actions without an effect; `False` if some are
        meant to have none.

    Raises a `ValueError` that names all flaws. Shapes and types that differ from `spec`
    are one too, as at the beginning of a training.
    """
    check_env(env)
    steps = jax.tree.map(np.asarray, _play(env, num_steps, actions, key))
    found = _flaws(steps, env.spec)
    if actions and isinstance(env.spec.action, Box):
        found += _idle_actions(steps)
    if found:
        raise ValueError(
            f"{type(env).__name__}, played for {num_steps} steps: " + "; ".join(found)
        )


def play_if_asked(env: AnyEnv) -> None:
    """Plays an environment if `eqrl.typecheck` was called with `play_envs`."""
    if plays_envs():
        check(env, key=jr.key(0))


@eqx.filter_jit
def _play(env: AnyEnv, num_steps: int, actions: bool, key: PRNGKeyArray) -> _Step:
    """Plays random actions and returns what each step gives."""
    spec = env.spec

    def step(
        carry: tuple[PyTree, Int[Array, ""]], index: Int[Array, ""]
    ) -> tuple[tuple[PyTree, Int[Array, ""]], _Step]:
        state, time = carry
        # 0 is that of the first reset.
        action_key, reset_key = jr.split(jr.fold_in(key, 2 * index + 1))
        step_key = jr.fold_in(key, 2 * index + 2)
        action = spec.action.sample(key=action_key)
        after, outcome = env.step(state, action, key=step_key)
        over = outcome.terminated | outcome.truncated
        late = spec.max_steps is not None and time + 1 >= spec.max_steps
        differs = jnp.zeros((3, 0), bool)
        if actions and isinstance(spec.action, Box):
            differs = _differences(env, state, action, step_key)
        seen = _Step(
            both_flags=outcome.terminated & outcome.truncated,
            beyond_limit=late & ~over,
            reward_not_finite=~jnp.all(jnp.isfinite(outcome.reward)),
            observation_not_finite=~jnp.all(jnp.isfinite(outcome.observation)),
            differs=differs,
        )
        fresh, _ = env.reset(key=reset_key)
        time = jnp.where(over, 0, time + 1)
        return (tree_where(over, fresh, after), time), seen

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
        return [
            jr.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            for x in jax.tree.leaves(eqx.filter(after, eqx.is_array))
        ]

    indices = jnp.arange(action.shape[0])
    values = jnp.asarray(_ELEMENTS, action.dtype)
    # In sequence: a `vmap` would hold one environment for each element and value.
    results = lax.map(
        lambda i: lax.map(lambda value: reached(i, value), values), indices
    )

    def apart(first: int, second: int) -> Bool[Array, " act"]:
        each = []
        for leaf in jax.tree.leaves(results):
            x, y = leaf[:, first], leaf[:, second]
            # `nan` counts as equal to `nan`.
            same = (x == y) | ((x != x) & (y != y))
            each.append(jnp.any(~same.reshape(x.shape[0], -1), axis=1))
        return jnp.any(jnp.stack(each), axis=0)

    return jnp.stack([apart(0, 1), apart(1, 2), apart(2, 3)])


def _flaws(steps: _Step, spec: EnvSpec) -> list[str]:
    """Describes each flaw."""
    said = {
        "both_flags": "`terminated` and `truncated` are both true at step {}, but an "
        "episode ends in one way: make it `truncated & ~terminated`",
        "beyond_limit": f"an episode continues past `spec.max_steps={spec.max_steps}` "
        "at step {}: make `truncated` true there, or wrap it in `eqrl.envs.TimeLimit`",
        "reward_not_finite": "the reward of step {} is not finite",
        "observation_not_finite": "the observation of step {} is not finite",
    }
    return [
        text.format(int(np.argmax(getattr(steps, name))) + 1)
        for name, text in said.items()
        if np.any(getattr(steps, name))
    ]


def _idle_actions(steps: _Step) -> list[str]:
    """Describes elements of actions, and ends of their range, that change nothing."""
    found = []
    low, middle, high = np.any(steps.differs, axis=0)
    for index in range(len(low)):
        if not any((low[index], middle[index], high[index])):
            found.append(
                f"element {index} of the action never makes a difference: is "
                "`spec.action` larger than what `step` reads?"
            )
            continue
        for is_used, interval in ((low, "[-1, -0.5]"), (high, "[0.5, 1]")):
            if not is_used[index]:
                found.append(
                    f"all values in {interval} of element {index} of the action do the "
                    "same: does `step` rescale it from [-1, 1]?"
                )
    return found
