"""An environment whose values can be worked out by hand, whatever it is set to."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from eqrl import EnvSpec, FloatLike, hyperparameter
from eqrl.envs import AbstractEnv, Outcome
from eqrl.spaces import Action, Box, Discrete


class ProbeState(eqx.Module):
    """The sign that was drawn for the episode, and how many steps are behind it."""

    sign: Float[Array, ""]
    time: Int[Array, ""]


class Probe(AbstractEnv[ProbeState]):
    """Observes the sign and the time; what it pays is a sum of simple terms.

    All settings but `num_choices` are leaves, so that every probe shares one
    compilation. Choices stand for the numbers from -1 to 1, evenly. `shown` is a factor
    of the sign that is observed, and `critic_shown` of the sign that critics see, who
    see the observation if it is `None`.
    """

    length: FloatLike = hyperparameter(1.0)
    time_weight: FloatLike = hyperparameter(1.0)
    terminates: FloatLike = hyperparameter(1.0)
    constant: FloatLike = hyperparameter(0.0)
    sign_weight: FloatLike = hyperparameter(0.0)
    last_weight: FloatLike = hyperparameter(0.0)
    action_weight: FloatLike = hyperparameter(0.0)
    best_action: FloatLike = hyperparameter(0.0)
    best_action_by_sign: FloatLike = hyperparameter(0.0)
    shown: FloatLike = hyperparameter(1.0)
    critic_shown: FloatLike | None = hyperparameter(None)
    num_choices: int | None = eqx.field(default=None, static=True)

    @property
    def spec(self) -> EnvSpec:
        critic_size = None if self.critic_shown is None else 3
        choices = self.num_choices
        return EnvSpec(
            observation_size=2,
            action=Box(1) if choices is None else Discrete(choices),
            critic_observation_size=critic_size,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[ProbeState, Float[Array, " obs"]]:
        state = ProbeState(sign=jr.rademacher(key, (), float), time=jnp.zeros((), int))
        return state, self._observe(state)

    def step(
        self, state: ProbeState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[ProbeState, Outcome]:
        del key
        best = self.best_action + self.best_action_by_sign * state.sign
        next_state = ProbeState(sign=state.sign, time=state.time + 1)
        over: Bool[Array, ""] = next_state.time.astype(float) >= self.length
        reward = (
            self.constant
            + self.sign_weight * state.sign
            + self.last_weight * over.astype(float)
            - self.action_weight * (self.number_of(action) - best) ** 2
        )
        terminates = self.terminates > 0.5
        return next_state, Outcome(
            observation=self._observe(next_state),
            reward=reward,
            terminated=over & terminates,
            truncated=over & ~terminates,
        )

    def state_descriptor(self, state: ProbeState) -> None:
        del state
        return None

    def critic_observation(self, state: ProbeState) -> Float[Array, "3"] | None:
        if self.critic_shown is None:
            return None
        # Longer than what the actor sees, so that no network takes one for the other.
        time = state.time.astype(float)
        return jnp.stack([self.critic_shown * state.sign, time, jnp.zeros(())])

    def number_of(self, action: Action) -> Float[Array, ""]:
        """The number that an action stands for, in [-1, 1]."""
        if self.num_choices is None:
            return action[0]
        return jnp.linspace(-1.0, 1.0, self.num_choices)[action]

    def _observe(self, state: ProbeState) -> Float[Array, " obs"]:
        time = self.time_weight * state.time.astype(float)
        return jnp.stack([self.shown * state.sign, time])
