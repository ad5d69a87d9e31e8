from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl.envs import AbstractEnv, DisabledActions, Outcome
from tests.toy import GetKey


class Mirror(AbstractEnv[Float[Array, "3"]]):
    """Is in the state that is the last action, which it observes twice over."""

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            observation_size=3, action_size=3, state_descriptor_size=3, max_steps=9
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "3"], Float[Array, "3"]]:
        state = jr.uniform(key, (3,))
        return state, 2 * state

    def step(
        self, state: Float[Array, "3"], action: Float[Array, "3"], *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "3"], Outcome]:
        del state
        return action, Outcome(
            observation=2 * action,
            reward=jr.uniform(key),
            terminated=action[0] > 0.5,
            truncated=action[0] < 0,
        )

    def state_descriptor(self, state: Float[Array, "3"]) -> Float[Array, "3"]:
        return 3 * state


ACTION = [0.7, -0.5, 0.25]


@pytest.mark.parametrize(
    "disabled, reached",
    [
        ((), [0.7, -0.5, 0.25]),
        ((1,), [0.7, 0, 0.25]),
        ([2, 0], [0, -0.5, 0]),
        (range(3), [0, 0, 0]),
        (np.array([1, 1]), [0.7, 0, 0.25]),
        ([True, False, False], [0, -0.5, 0.25]),
        (np.array([False, True, False]), [0.7, 0, 0.25]),
        (jnp.array([False, False, True]), [0.7, -0.5, 0]),
    ],
)
def test_what_is_disabled_reaches_the_environment_as_zero(
    disabled: Any, reached: list[float], getkey: GetKey
) -> None:
    env = DisabledActions(Mirror(), disabled)
    _, outcome = env.step(jnp.zeros(3), jnp.array(ACTION), key=getkey())
    np.testing.assert_allclose(outcome.observation, 2 * np.array(reached))


def test_all_else_is_the_environments(getkey: GetKey) -> None:
    env, key = DisabledActions(Mirror(), ()), getkey()
    assert env.spec == Mirror().spec
    same_reset = env.reset(key=jr.clone(key)), Mirror().reset(key=jr.clone(key))
    assert eqx.tree_equal(*same_reset)
    state, _ = env.reset(key=getkey())
    np.testing.assert_array_equal(env.state_descriptor(state), 3 * state)
    assert eqx.tree_equal(
        env.step(state, jnp.array(ACTION), key=jr.clone(key)),
        Mirror().step(state, jnp.array(ACTION), key=key),
    )


def test_other_disabled_actions_do_not_trace_again() -> None:
    traces = []

    @eqx.filter_jit
    def reached(env: AbstractEnv[Any]) -> Float[Array, "3"]:
        traces.append(None)
        return env.step(jnp.zeros(3), jnp.array(ACTION), key=jr.key(0))[0]

    no_leg: list[int] = []
    sums = [
        float(jnp.sum(reached(DisabledActions(Mirror(), disabled))))
        for disabled in (no_leg, [0, 1], jnp.array([True, True, True]))
    ]
    np.testing.assert_allclose(sums, [0.45, 0.25, 0])
    assert len(traces) == 1


def test_what_is_disabled_can_be_mapped_over() -> None:
    envs = eqx.filter_vmap(lambda mask: DisabledActions(Mirror(), mask))(
        jnp.eye(3, dtype=bool)
    )

    def reached(env: DisabledActions[Any]) -> Float[Array, "3"]:
        return env.step(jnp.zeros(3), jnp.ones(3), key=jr.key(0))[0]

    np.testing.assert_array_equal(eqx.filter_vmap(reached)(envs), 1 - np.eye(3))


def test_indices_can_be_mapped_over() -> None:
    envs = eqx.filter_vmap(lambda index: DisabledActions(Mirror(), index[None]))(
        jnp.arange(3)
    )
    np.testing.assert_array_equal(envs.disabled, np.eye(3, dtype=bool))


@pytest.mark.parametrize(
    "disabled, said",
    [
        ([3], r"names \[3\].*3 elements, 0 to 2"),
        ([0, -1], r"names \[-1\]"),
        ([True, False], r"shape \(2,\).*3 elements"),
        (jnp.zeros(4, bool), r"shape \(4,\)"),
    ],
)
def test_what_is_not_there_cannot_be_disabled(disabled: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DisabledActions(Mirror(), disabled)
