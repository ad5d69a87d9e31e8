from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

from eqrl._types.data import EnvSpec
from eqrl.envs import AbstractEnv, Outcome, PooledReset

from ..toy import GetKey


class Lottery(AbstractEnv[Float[Array, ""]]):
    """Begins anywhere; the first observation is twice the state."""

    on_reset: Callable[[], None] = eqx.field(static=True)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation_size=1, action_size=1, state_descriptor_size=1, max_steps=9
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Float[Array, " obs"]]:
        self.on_reset()
        state = jr.uniform(key)
        return state, 2 * state[None]

    def step(
        self,
        state: Float[Array, ""],
        action: Float[Array, " act"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, ""], Outcome]:
        state = state + action[0] + jr.uniform(key)
        outcome = Outcome(
            observation=state[None],
            reward=3 * state,
            terminated=jnp.array(True),
            truncated=jnp.array(False),
        )
        return state, outcome

    def state_descriptor(self, state: Float[Array, ""]) -> Float[Array, " descriptor"]:
        return 10 * state[None]


def _nothing() -> None:
    pass


def _many_resets(
    env: AbstractEnv[Float[Array, ""]], key: PRNGKeyArray
) -> tuple[Float[Array, " 64"], Float[Array, "64 1"]]:
    return eqx.filter_vmap(lambda key: env.reset(key=key))(jr.split(key, 64))


def test_begins_in_as_many_states_of_the_environment_as_asked_for(
    getkey: GetKey,
) -> None:
    key = getkey()
    env = PooledReset(Lottery(_nothing), 3, key=jr.clone(key))
    states, observations = _many_resets(env, getkey())
    expected = [Lottery(_nothing).reset(key=part)[0] for part in jr.split(key, 3)]
    np.testing.assert_allclose(np.unique(states), np.sort(expected), rtol=1e-6)
    np.testing.assert_allclose(observations[:, 0], 2 * states)


def test_reset_computes_no_reset_of_the_environment(getkey: GetKey) -> None:
    resets = []
    env = PooledReset(Lottery(lambda: resets.append(None)), 3, key=getkey())
    resets.clear()
    env.reset(key=getkey())
    assert len(resets) == 0


def test_all_but_the_reset_is_the_environments(getkey: GetKey) -> None:
    key = getkey()
    lottery = Lottery(_nothing)
    env = PooledReset(lottery, 3, key=getkey())
    given = env.step(jnp.array(1.0), jnp.ones(1), key=jr.clone(key))
    expected = lottery.step(jnp.array(1.0), jnp.ones(1), key=key)
    assert eqx.tree_equal(given, expected)
    np.testing.assert_array_equal(env.state_descriptor(jnp.array(2.0)), [20])
    assert env.spec == lottery.spec


def test_another_pool_of_the_same_size_does_not_trace_again(getkey: GetKey) -> None:
    traces = []

    @eqx.filter_jit
    def reset(env: AbstractEnv[Float[Array, ""]], key: PRNGKeyArray) -> Array:
        traces.append(None)
        return env.reset(key=key)[1]

    lottery = Lottery(_nothing)
    reset(PooledReset(lottery, 3, key=getkey()), getkey())
    reset(PooledReset(lottery, 3, key=getkey()), getkey())
    assert len(traces) == 1


def test_states_of_several_leaves_are_drawn_together(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pair(AbstractEnv[dict[str, Array]]):
        @property
        def spec(self) -> EnvSpec:
            return EnvSpec(observation_size=2, action_size=1)

        def reset(
            self, *, key: PRNGKeyArray
        ) -> tuple[dict[str, Array], Float[Array, " obs"]]:
            values = jr.uniform(key, (2,))
            state = {"both": values, "second": values[1], "keys": jr.split(key)}
            return state, values

        def step(
            self, state: dict[str, Array], action: Array, *, key: PRNGKeyArray
        ) -> tuple[dict[str, Array], Outcome]:
            raise NotImplementedError

        def state_descriptor(self, state: dict[str, Array]) -> None:
            return None

    env = PooledReset(Pair(), 8, key=getkey())
    states, _ = eqx.filter_vmap(lambda key: env.reset(key=key))(
        jax.random.split(getkey(), 16)
    )
    np.testing.assert_array_equal(states["both"][:, 1], states["second"])
    # What is drawn later is not the same again.
    keys = jr.key_data(states["keys"]).reshape(32, -1)
    assert len(np.unique(keys, axis=0)) == 32
    used: list[list[int]] = []
    bits = lambda key: (used.append(jr.key_data(key).tolist()), jnp.uint32(3))[1]
    monkeypatch.setattr(jr, "bits", bits)
    key = getkey()
    env.reset(key=key)
    # Nor does it follow from the choice of the state, drawn from these two keys.
    assert len(used) > 0
    assert not any(x in used for x in jr.key_data(jr.split(key)).tolist())


def test_a_pool_of_no_states_is_refused(getkey: GetKey) -> None:
    with pytest.raises(ValueError, match="num_states=0"):
        PooledReset(Lottery(_nothing), 0, key=getkey())
