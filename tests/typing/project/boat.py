"""A boat that is driven across a lake against the current."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

import eqrl
from eqrl.envs import AbstractEnv, Outcome
from eqrl.spaces import Action


class BoatState(eqx.Module):
    """Where the boat is, how it moves, and for how long."""

    place: Float[Array, " 2"]
    motion: Float[Array, " 2"]
    time: Int[Array, ""]


class Boat(AbstractEnv[BoatState]):
    """The boat is to reach a harbor, and ends at the shore of the lake."""

    current: eqrl.FloatLike = eqrl.hyperparameter(0.02, low=0)
    drag: eqrl.FloatLike = eqrl.hyperparameter(0.2, low=0, high=1)
    harbor: tuple[float, float] = eqx.field(default=(0.5, 0.5), static=True)
    patience: int = eqx.field(default=30, static=True)

    def __check_init__(self) -> None:
        eqrl.check_fields(self)

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            observation_size=4,
            action_size=2,
            state_descriptor_size=2,
            max_steps=self.patience,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[BoatState, Float[Array, " obs"]]:
        state = BoatState(
            place=jr.uniform(key, (2,), minval=-0.5, maxval=0.5),
            motion=jnp.zeros(2),
            time=jnp.zeros((), int),
        )
        return state, seen_from(state)

    def step(
        self, state: BoatState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[BoatState, Outcome]:
        gust = 0.01 * jr.normal(key, (2,))
        motion = (1 - self.drag) * state.motion + 0.1 * action
        state = BoatState(
            place=state.place + motion + gust + jnp.stack([self.current, 0.0]),
            motion=motion,
            time=state.time + 1,
        )
        stranded = jnp.max(jnp.abs(state.place)) > 1
        return state, Outcome(
            observation=seen_from(state),
            reward=-distance(state.place, jnp.asarray(self.harbor)),
            terminated=stranded,
            truncated=self.is_over(state) & ~stranded,
        )

    def state_descriptor(self, state: BoatState) -> Float[Array, " descriptor"]:
        return state.place

    def is_over(self, state: BoatState) -> Bool[Array, ""]:
        return state.time >= self.patience


def seen_from(state: BoatState) -> Float[Array, " obs"]:
    return jnp.concatenate([state.place, state.motion])


def distance(place: Float[Array, " 2"], harbor: Float[Array, " 2"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum((place - harbor) ** 2) + 1e-6)
