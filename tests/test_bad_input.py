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
from eqrl._pytree.fields import check_integer
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


@pytest.mark.parametrize("make_actor", [nn.Deterministic((8,)), make_mlp])
def test_sac_refuses_an_actor_without_a_density(
    make_actor: Any, getkey: GetKey
) -> None:
    agent = eqrl.SAC(make_actor=make_actor)
    with pytest.raises(ValueError, match=r"`make_actor`.*AbstractDensity"):
        agent.init(SPEC, key=getkey())


def test_td3_refuses_an_actor_that_gives_a_distribution(getkey: GetKey) -> None:
    agent = eqrl.TD3(make_actor=nn.Gaussian((8,)))
    with pytest.raises(ValueError, match=r"`make_actor` gives a TanhNormal"):
        agent.init(SPEC, key=getkey())


def test_td3_refuses_actions_of_another_length(getkey: GetKey) -> None:
    agent = eqrl.TD3(make_actor=make_too_long)
    with pytest.raises(ValueError, match=r"shape \(3,\).*takes \(2,\)"):
        agent.init(SPEC, key=getkey())


def test_a_library_network_of_equinox_serves_as_an_actor(getkey: GetKey) -> None:
    agent = eqrl.TD3(make_actor=make_mlp, make_critic=nn.Critic((8,)))
    trainer = eqrl.Trainer(batch_size=4, warmup_steps=4)
    solution = eqrl.train(agent, Point(), trainer, num_steps=8, key=getkey())
    assert int(solution.counts.updates) == 4


@pytest.mark.parametrize("make_agent", [eqrl.SAC, eqrl.TD3])
def test_no_hyperparameter_may_be_missing(make_agent: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="`discount=None` is not a number"):
        make_agent(discount=None)


def test_a_hyperparameter_is_one_number() -> None:
    with pytest.raises(ValueError, match=r"`actor_lr` has shape \(3,\).*filter_vmap"):
        eqrl.SAC(actor_lr=jnp.ones(3))


@pytest.mark.parametrize("value", [0, -1])
def test_there_is_at_least_one_critic(value: int) -> None:
    with pytest.raises(ValueError, match="`num_critics="):
        eqrl.TD3(num_critics=value)


@pytest.mark.parametrize("value", [0, 2.0, "2", True, None])
def test_what_counts_something_is_an_integer(value: Any) -> None:
    with pytest.raises(ValueError, match=r"`size=.* must be an integer, at least 1"):
        check_integer("size", value, least=1)


def test_optimizers_are_one_factory_or_one_for_each_part() -> None:
    with pytest.raises(ValueError, match=r"`make_optimizer=.*tuple of 3"):
        eqrl.SAC(make_optimizer=(optax.adam, optax.adam))


def test_hidden_layers_are_not_empty() -> None:
    with pytest.raises(ValueError, match="`hidden_sizes="):
        nn.Gaussian(hidden_sizes=(8, 0))


def test_numpy_integers_are_as_good_as_any() -> None:
    trainer = eqrl.Trainer(
        num_envs=np.int64(2),  # pyright: ignore[reportArgumentType]
        batch_size=4,
        warmup_steps=4,
    )
    assert trainer == eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=4)


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


def test_actions_that_do_not_fit_the_environment_are_refused(getkey: GetKey) -> None:
    agent = Askew(metrics=("loss", ()), action_size=3)
    with pytest.raises(ValueError, match=r"`act` gives actions of shape \(3,\)"):
        run_askew(agent, key=getkey())


@pytest.mark.parametrize("name", ["step", "nonfinite"])
def test_metrics_may_not_take_the_names_of_the_trainer(
    name: str, getkey: GetKey
) -> None:
    with pytest.raises(ValueError, match=f"metric `{name}`"):
        run_askew(Askew(metrics=(name, ())), key=getkey())


def test_metrics_are_scalars() -> None:
    with pytest.raises(ValueError, match="metric `loss` is of shape"):
        check_metrics({"loss": jax.ShapeDtypeStruct((2,), jnp.float32)})


def test_a_bare_name_of_an_environment_is_completed() -> None:
    with pytest.raises(ValueError, match="`gymnax/Pendulum-v1`"):
        eqrl.envs.make("Pendulum-v1")


def test_greedy_actions_of_an_unbounded_actor_are_clipped(getkey: GetKey) -> None:
    agent = td3(exploration_noise=0.0)
    state = agent.init(SPEC, key=getkey())
    state = eqx.tree_at(
        lambda state: state.actor,
        state,
        lambda x: 10 * jnp.ones(2),
        is_leaf=callable,
    )
    action, _, _ = agent.act(state, None, jnp.zeros(3), mode="greedy", key=jr.key(0))
    assert jnp.all(action == 1)
