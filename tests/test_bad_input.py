"""What is given wrongly is answered by a `ValueError` that says what to do."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl import nn
from eqrl._training.metrics import check_metrics
from eqrl.envs import Point

from .agents_under_test import sac, td3
from .toy import Clock


GetKey = Callable[[], PRNGKeyArray]
SPEC = eqrl.EnvSpec(observation_size=3, action_size=2)


def make_mlp(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> eqx.nn.MLP:
    return eqx.nn.MLP(observation_size, action_size, 8, 1, key=key)


def make_too_long(
    observation_size: int, action_size: int, *, key: PRNGKeyArray
) -> nn.DeterministicPolicy:
    return nn.Deterministic((8,))(observation_size, action_size + 1, key=key)


# An agent that `SPEC` does not fit, and what is said of it.
MISFITS = [
    (eqrl.SAC(make_actor=nn.Deterministic((8,))), r"`make_actor`.*AbstractDensity"),
    (eqrl.SAC(make_actor=make_mlp), r"`make_actor`.*AbstractDensity"),
    (eqrl.TD3(make_actor=nn.Gaussian((8,))), r"`make_actor` gives a TanhNormal"),
    (eqrl.TD3(make_actor=make_too_long), r"shape \(3,\).*takes \(2,\)"),
]


def test_networks_that_do_not_fit_the_environment_are_named(getkey: GetKey) -> None:
    for agent, message in MISFITS:
        with pytest.raises(ValueError, match=message):
            eqx.filter_eval_shape(agent.init, SPEC, key=getkey())


# What is made, and what is said of it.
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: eqrl.SAC(discount=None), "`discount=None` is not a number"),  # pyright: ignore[reportArgumentType]
    (lambda: eqrl.TD3(discount=None), "`discount=None` is not a number"),  # pyright: ignore[reportArgumentType]
    (
        lambda: eqrl.SAC(actor_lr=jnp.ones(3)),
        r"`actor_lr` has shape \(3,\).*filter_vmap",
    ),
    (lambda: eqrl.TD3(num_critics=0), "`num_critics="),
    (lambda: eqrl.TD3(num_critics=-1), "`num_critics="),
    (
        lambda: eqrl.SAC(make_optimizer=(optax.adam, optax.adam)),
        r"`make_optimizer=.*tuple of 3",
    ),
    (lambda: nn.Gaussian(hidden_sizes=(8, 0)), "`hidden_sizes="),
]


def test_values_that_are_never_right_are_named() -> None:
    for make, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            make()


def test_a_network_of_equinox_serves_as_an_actor(getkey: GetKey) -> None:
    # Its activation is a leaf, which neither init nor a run may compute with.
    agent = eqrl.TD3(make_actor=make_mlp, make_critic=nn.Critic((8,)))
    trainer = eqrl.Trainer(batch_size=4, warmup_steps=4)
    state, counts = eqx.filter_eval_shape(trainer.init, agent, Point(), key=getkey())
    after, _, _ = eqx.filter_eval_shape(
        trainer.run, agent, Point(), state, counts, num_steps=8, key=getkey()
    )
    for actor in (state.agent.actor, after.agent.actor):
        assert actor.activation is jax.nn.relu


def test_integers_of_numpy_are_as_good_as_those_of_python() -> None:
    trainer = eqrl.Trainer(
        num_envs=np.int64(2),  # pyright: ignore[reportArgumentType]
        batch_size=4,
        warmup_steps=4,
    )
    assert trainer == eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=4)
    agent = eqrl.TD3(policy_delay=np.int64(2))  # pyright: ignore[reportArgumentType]
    assert type(agent.policy_delay) is int


def test_a_vector_reward_is_refused_by_an_agent_that_takes_scalars(
    getkey: GetKey,
) -> None:
    trainer = eqrl.Trainer(batch_size=4, warmup_steps=4)
    with pytest.raises(ValueError, match=r"`spec.reward_size=2`"):
        eqrl.train(sac(), Clock(reward_size=2), trainer, num_steps=8, key=getkey())


class Askew(eqrl.AbstractMarkovAgent[None]):
    """Acts in as many dimensions as it is told, and reports what it is told."""

    metrics: Any = eqx.field(default=None, static=True)
    action_size: int = eqx.field(default=2, static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> None:
        del spec, key

    def policy(self, state: None) -> nn.Policy:
        del state

        def policy(observation: Float[Array, " obs"]) -> nn.ClippedNormal:
            del observation
            return nn.ClippedNormal(
                mean=jnp.zeros(self.action_size), scale=jnp.ones(())
            )

        return policy

    def update(
        self, state: None, batch: eqrl.Transition, *, step: Array, key: PRNGKeyArray
    ) -> tuple[None, eqrl.Metrics]:
        del state, batch, step, key
        name, shape = self.metrics
        return None, {name: jnp.zeros(shape)}


def run_askew(agent: Askew, *, key: PRNGKeyArray) -> None:
    trainer = eqrl.Trainer(batch_size=4, warmup_steps=4)
    eqrl.train(agent, Point(), trainer, num_steps=8, key=key)


# Agents that the trainer cannot train, and what is said of them.
UNTRAINABLE = [
    (
        Askew(metrics=("loss", ()), action_size=3),
        r"`act` gives actions of shape \(3,\)",
    ),
    (Askew(metrics=("step", ())), "metric `step`"),
    (Askew(metrics=("nonfinite", ())), "metric `nonfinite`"),
]


def test_actions_and_metrics_that_do_not_fit_the_trainer_are_named(
    getkey: GetKey,
) -> None:
    trainer = eqrl.Trainer(batch_size=4, warmup_steps=4)
    for agent, message in UNTRAINABLE:
        with pytest.raises(ValueError, match=message):
            eqrl.train(agent, Point(), trainer, num_steps=8, key=getkey())


def test_metrics_are_scalars() -> None:
    with pytest.raises(ValueError, match="metric `loss` is of shape"):
        check_metrics({"loss": jax.ShapeDtypeStruct((2,), jnp.float32)})


def test_a_bare_name_of_an_environment_is_completed() -> None:
    with pytest.raises(ValueError, match="`gymnax/Pendulum-v1`"):
        eqrl.envs.make("Pendulum-v1")


def test_greedy_actions_of_an_unbounded_actor_are_clipped(getkey: GetKey) -> None:
    agent = td3(exploration_noise=0.0)
    state = eqx.filter_eval_shape(agent.init, SPEC, key=getkey())
    state = eqx.tree_at(lambda state: state.actor, state, lambda x: 10 * jnp.ones(2))
    action, _, _ = agent.act(state, None, jnp.zeros(3), mode="greedy", key=jr.key(0))
    assert np.all(np.asarray(action) == 1)
