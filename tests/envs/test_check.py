"""An environment is played, and what no type can say is reported."""

import jax.numpy as jnp
import jax.random as jr
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl import EnvSpec, FloatLike, hyperparameter
from eqrl._types import typecheck
from eqrl.envs import AbstractEnv, Outcome, check
from eqrl.envs._check import prepare


class Faulty(AbstractEnv[Int[Array, ""]]):
    """Counts its steps, of which three are an episode; as faulty as `fault` says.

    At 1 it does all wrong that it can, in one compiled program with doing none.
    """

    fault: FloatLike = hyperparameter(0.0)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, 3, state_descriptor_size=1, max_steps=3)

    def reset(self, *, key: PRNGKeyArray) -> tuple[Int[Array, ""], Float[Array, "1"]]:
        del key
        return jnp.zeros((), int), jnp.zeros(1)

    def step(
        self, state: Int[Array, ""], action: Float[Array, "3"], *, key: PRNGKeyArray
    ) -> tuple[Int[Array, ""], Outcome]:
        is_faulty = self.fault > 0
        time = state + 1
        ignored = jnp.where(is_faulty, 0, action[1])
        clipped = jnp.where(is_faulty, jnp.maximum(action[2], 0), action[2])
        # The key is used, so that it would be noticed if the next step had it too.
        reward = action[0] + ignored + clipped + jr.uniform(key)
        over = jnp.where(is_faulty, time >= 5, time >= 3)
        outcome = Outcome(
            observation=jnp.where(is_faulty & (time == 4), jnp.nan, reward)[None],
            reward=jnp.where(is_faulty & (time == 2), jnp.inf, reward),
            terminated=over & is_faulty,
            truncated=over | False,
        )
        return time, outcome

    def state_descriptor(self, state: Int[Array, ""]) -> Float[Array, "1"]:
        breaks = (self.fault > 0) & (state == 3)
        return jnp.where(breaks, jnp.nan, 0.0)[None]


@pytest.mark.checks_keys
def test_what_is_wrong_with_an_environment_is_reported_all_at_once() -> None:
    check(Faulty(), key=jr.key(0), num_steps=20)
    with pytest.raises(ValueError) as raised:
        check(Faulty(1.0), key=jr.key(0), num_steps=20)
    message = str(raised.value)
    assert message.startswith("Faulty, played for 20 steps: ")
    parts = message.removeprefix("Faulty, played for 20 steps: ").split("; ")
    assert [part[:62] for part in parts] == [
        "`terminated` and `truncated` are both true at step 5, but an e",
        "an episode continues past `spec.max_steps=3` at step 3: make `",
        "the reward of step 2 is not finite",
        "the observation of step 4 is not finite",
        "the descriptor of the state after step 3 is not finite",
        "element 1 of the action never makes a difference: is `spec.act",
        "all values in [-1, -0.5] of element 2 of the action do the sam",
    ]


def test_environments_are_played_before_a_training_only_if_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = []
    monkeypatch.setattr(
        "eqrl.envs._check.check",
        lambda env, *, key, actions: played.append(actions) or 1 / 0,
    )
    prepare(Faulty())
    assert played == []
    monkeypatch.setattr(typecheck, "_plays_envs", True)
    agent = eqrl.Intrinsic(eqrl.SAC(), eqrl.Incremental())
    train = {"num_steps": 1_000, "key": jr.key(0)}
    with pytest.raises(ZeroDivisionError):
        eqrl.learn_skills(agent, Faulty(), eqrl.Trainer(), num_skills=1, **train)
    assert played == [False]
