"""Plays an environment and looks for what its types cannot say."""

from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from .._pytree.control_flow import filter_scan
from .._pytree.fields import check_integer, check_key
from .._pytree.tree import tree_where
from .._types.data import EnvSpec
from .._types.spaces import Box
from .._types.typecheck import plays_envs
from ._base import AnyEnv, Outcome
from ._check import check_env


# The ends of the range of an element of an action, and half of the way there.
_ELEMENTS = (-1.0, -0.5, 0.5, 1.0)


class _Step(eqx.Module):
    """What of a step is wrong, and which actions made a difference in it."""

    both_flags: Bool[Array, ""]
    beyond_limit: Bool[Array, ""]
    reward_not_finite: Bool[Array, ""]
    observation_not_finite: Bool[Array, ""]
    differs_low: Bool[Array, " elements"]
    differs_high: Bool[Array, " elements"]
    differs: Bool[Array, " elements"]


def check(
    env: AnyEnv, *, key: PRNGKeyArray, num_steps: int = 300, actions: bool = True
) -> None:
    """Plays an environment at random and reports what no type can say.

    Looked for are steps that both terminate and truncate; a time limit,
    `spec.max_steps`, that is not kept; rewards and observations that are not finite;
    and elements of an action, or ends of their range, that never make a difference.

    **Arguments:**

    - `env`: the environment.
    - `key`: for the environment and the actions.
    - `num_steps`: how many steps to play, at least 1. A longer time limit is not seen.
    - `actions`: whether to look at what actions change; false where some are meant to
        change nothing.

    Raises a `ValueError` that names everything found; and one unless shapes and types
    are those of `spec`, as whenever a training begins.
    """
    check_env(env)
    check_key(key)
    check_integer("num_steps", num_steps, least=1)
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
    """Each step of so many, which random actions make."""
    spec = env.spec

    def step(
        carry: tuple[PyTree, Int[Array, ""]], index: Int[Array, ""]
    ) -> tuple[tuple[PyTree, Int[Array, ""]], _Step]:
        state, time = carry
        action_key, reset_key = jr.split(jr.fold_in(key, 2 * index + 1))
        step_key = jr.fold_in(key, 2 * index + 2)
        action = spec.action.sample(key=action_key)
        after, outcome = env.step(state, action, key=step_key)
        over = outcome.terminated | outcome.truncated
        late = spec.max_steps is not None and time + 1 >= spec.max_steps
        differs = (jnp.zeros(0, bool),) * 3
        if actions and isinstance(spec.action, Box):
            differs = _differences(env, state, action, step_key)
        seen = _Step(
            both_flags=outcome.terminated & outcome.truncated,
            beyond_limit=late & ~over,
            reward_not_finite=~jnp.all(jnp.isfinite(outcome.reward)),
            observation_not_finite=~jnp.all(jnp.isfinite(outcome.observation)),
            differs_low=differs[0],
            differs_high=differs[1],
            differs=differs[2],
        )
        fresh, _ = env.reset(key=reset_key)
        time = jnp.where(over, 0, time + 1)
        return (tree_where(over, fresh, after), time), seen

    state, _ = env.reset(key=jr.fold_in(key, 0))
    carry = (state, jnp.zeros((), int))
    return filter_scan(step, carry, jnp.arange(num_steps))[1]


def _differences(
    env: AnyEnv, state: Any, action: Float[Array, " act"], key: PRNGKeyArray
) -> tuple[Bool[Array, " act"], Bool[Array, " act"], Bool[Array, " act"]]:
    """Whether ends of the range, and any values, of each element lead elsewhere."""

    def reached(index: Int[Array, ""], value: Float[Array, ""]) -> PyTree:
        # Of the same chance, so that only the action makes a difference.
        same_key = jr.clone(key)
        return _numbers(env.step(state, action.at[index].set(value), key=same_key))

    indices = jnp.arange(action.shape[0])
    values = jnp.asarray(_ELEMENTS, action.dtype)
    # One after another: together they would be as many environments.
    results = lax.map(
        lambda i: lax.map(lambda value: reached(i, value), values), indices
    )

    def apart(first: int, second: int) -> Bool[Array, " act"]:
        each = [_differ(x[:, first], x[:, second]) for x in jax.tree.leaves(results)]
        return jnp.any(jnp.stack(each), axis=0)

    low, middle, high = apart(0, 1), apart(1, 2), apart(2, 3)
    return low, high, low | middle | high


def _differ(
    x: Shaped[Array, "act ..."], y: Shaped[Array, "act ..."]
) -> Bool[Array, " act"]:
    """In which rows two arrays differ; `nan` is the same as `nan`."""
    same = (x == y) | ((x != x) & (y != y))
    return jnp.any(~same.reshape(x.shape[0], -1), axis=1)


def _numbers(reached: tuple[PyTree, Outcome]) -> PyTree:
    """What can be compared of where a step led."""
    return [
        jr.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in jax.tree.leaves(eqx.filter(reached, eqx.is_array))
    ]


def _flaws(steps: _Step, spec: EnvSpec) -> list[str]:
    """What is wrong, each in words."""
    said = {
        "both_flags": "`terminated` and `truncated` are both true at step {}, but an "
        "episode ends in one way: make it `truncated & ~terminated`",
        "beyond_limit": f"an episode goes on behind `spec.max_steps={spec.max_steps}` "
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
    """Which elements of actions, and which ends of their range, change nothing."""
    found = []
    low, high, used = (
        np.any(x, axis=0)
        for x in (steps.differs_low, steps.differs_high, steps.differs)
    )
    for index in range(len(used)):
        if not used[index]:
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
