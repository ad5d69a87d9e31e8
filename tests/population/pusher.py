"""A linear agent that compiles fast and has hyperparameters to tune."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from eqrl import EnvSpec, FloatLike, Metrics, Mode, Transition, hyperparameter

from ..toy import Idle


class PusherState(eqx.Module):
    """The weights of a linear policy."""

    weight: Float[Array, "act obs"]


class Pusher(Idle):
    """Acts by a linear policy with noise, and imitates actions by their rewards."""

    rate: FloatLike = hyperparameter(0.1)
    noise: FloatLike = hyperparameter(0.5, low=0, high=1)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> PusherState:
        return PusherState(jr.normal(key, (spec.action_size, spec.observation_size)))

    def act(
        self,
        state: PusherState,
        memory: None,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], None, None]:
        del memory
        action = state.weight @ observation + 0.1
        if mode != "greedy":
            action = action + self.noise * jr.normal(key, action.shape)
        return jnp.tanh(action), None, None

    def update(
        self,
        state: PusherState,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[PusherState, Metrics]:
        del step
        reward = batch.reward.reshape(batch.reward.shape[0], -1).sum(axis=1)
        noise = jr.normal(key, state.weight.shape)
        move = jnp.einsum("b,ba,bo->ao", reward, batch.action, batch.observation)
        weight = state.weight + self.rate * (move + 0.1 * noise - state.weight)
        return PusherState(weight), {"size": jnp.linalg.norm(weight)}
