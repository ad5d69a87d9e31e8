"""An update of TAAC agrees with the same once more in NumPy, on random windows."""

import functools
from typing import Any

import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl.losses import taac_actor_loss, taac_next_value
from tests.toy import make_linear_gaussian

from . import taac_restated as restated


WINDOWS, ACTION_SIZE, OBSERVATION_SIZE = 3, 2, 2


class TanhCritic(eqx.Module):
    """Twice the `tanh` of a linear function, a vector where weights are matrices."""

    observation_weight: Float[Array, "*reward obs"]
    trajectory_weight: Float[Array, "*reward trajectory"]
    bias: Float[Array, "*reward"]

    def __call__(
        self, observation: Float[Array, " obs"], trajectory: Float[Array, " trajectory"]
    ) -> Float[Array, "*reward"]:
        return 2 * jnp.tanh(
            self.observation_weight @ observation
            + self.trajectory_weight @ trajectory
            + self.bias
        )


def make_tanh_critic(
    observation_size: int,
    action_size: int,
    *,
    trajectory_size: int,
    reward_size: int | None,
    key: PRNGKeyArray,
) -> TanhCritic:
    del action_size
    keys = jr.split(key, 3)
    shape = () if reward_size is None else (reward_size,)
    return TanhCritic(
        observation_weight=0.5 * jr.normal(keys[0], (*shape, observation_size)),
        trajectory_weight=0.5 * jr.normal(keys[1], (*shape, trajectory_size)),
        bias=0.5 * jr.normal(keys[2], shape),
    )


def small(**options: Any) -> eqrl.TAAC:
    """Moves by its gradients, times rates that differ."""
    options = {
        "window_length": 4,
        "actor_lr": 1.0,
        "critic_lr": 0.5,
        "temperature_lr": 2.0,
        "discount": 0.9,
        "target_step_size": 0.25,
        "initial_temperature": 0.5,
        "make_actor": make_linear_gaussian,
        "make_critic": make_tanh_critic,
        "make_optimizer": optax.sgd,
    } | options
    return eqrl.TAAC(**options)


AGENTS = {
    "constant": (small(), None),
    "single transitions": (small(window_length=1, num_critics=1), None),
    "linear, clipped": (
        small(trajectory=eqrl.LinearTrajectory(), advantage_clip=(-0.1, 0.3)),
        None,
    ),
    "linear, not inverse, sampled": (
        small(trajectory=eqrl.LinearTrajectory(inverse=False), bootstrap="sampled"),
        None,
    ),
    "quadratic, vector": (
        small(
            trajectory=eqrl.QuadraticTrajectory(),
            discount=(0.9, 0.5, 0.0),
            reward_weights=(1.0, -0.5, 0.0),
            target_entropy=-1.0,
            switch_target_entropy=0.2,
        ),
        3,
    ),
    "quadratic, not inverse, faithful, vector": (
        small(
            trajectory=eqrl.QuadraticTrajectory(inverse=False),
            reward_weights=(0.0, -2.0),
            faithful=True,
        ),
        2,
    ),
    "one step, vector": (small(target="one_step"), 2),
    "multi step, Huber": (
        small(target="multi_step", td_loss=optax.huber_loss),
        None,
    ),
}


def random_trajectory(
    agent: eqrl.TAAC, shape: tuple[int, ...], *, key: PRNGKeyArray
) -> eqrl.Trajectory:
    zeros, structure = jax.tree.flatten(agent.trajectory.begin(ACTION_SIZE))
    keys = jr.split(key, len(zeros))
    return jax.tree.unflatten(
        structure,
        [
            jr.uniform(part_key, (*shape, ACTION_SIZE), minval=-1, maxval=1)
            for part_key in keys
        ],
    )


def random_windows(
    agent: eqrl.TAAC,
    reward_size: int | None,
    ends: Float[Array, ""],
    switches: Float[Array, ""],
    *,
    key: PRNGKeyArray,
) -> eqrl.Transition[eqrl.TAACExtras]:
    """Windows with ends of episodes inside, of which half terminate."""
    keys = jr.split(key, 10)
    shape = (WINDOWS, agent.window_length)
    reward_shape = shape if reward_size is None else (*shape, reward_size)
    end = jr.bernoulli(keys[4], ends, shape)
    terminates = jr.bernoulli(keys[5], 0.5, shape)
    trajectory = random_trajectory(agent, shape, key=keys[7])
    return eqrl.Transition(
        observation=jr.normal(keys[0], (*shape, OBSERVATION_SIZE)),
        action=trajectory.action,
        reward=jr.normal(keys[2], reward_shape),
        next_observation=jr.normal(keys[3], (*shape, OBSERVATION_SIZE)),
        terminated=end & terminates,
        truncated=end & ~terminates,
        timestep=jnp.zeros(shape, int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=eqrl.TAACExtras(
            previous=random_trajectory(agent, shape, key=keys[6]),
            trajectory=trajectory,
            switch=jr.bernoulli(keys[8], switches, shape),
            repeats=jr.randint(keys[9], shape, 1, 4),
        ),
    )


@functools.cache
def compiled(name: str) -> Any:
    """From a seed to a state, windows, what is drawn, and the update of them."""
    agent, reward_size = AGENTS[name]
    spec = eqrl.EnvSpec(
        observation_size=OBSERVATION_SIZE,
        action_size=ACTION_SIZE,
        reward_size=reward_size,
    )

    @eqx.filter_jit
    def run(seed: Array, ends: Array, switches: Array) -> Any:
        init_key, other_key, batch_key, key, switch_key = jr.split(jr.key(seed), 5)
        state = agent.init(spec, key=init_key)
        other = agent.init(spec, key=other_key)
        state = eqx.tree_at(
            lambda s: (s.target_critics, s.log_temperatures.switch),
            state,
            (other.critics, jr.normal(switch_key)),
        )
        batch = random_windows(agent, reward_size, ends, switches, key=batch_key)
        size = WINDOWS * agent.window_length
        drawn = restated.draws(jr.clone(key), size, ACTION_SIZE)
        after, metrics = agent.update(
            state,
            batch
            if agent.window_length > 1
            else jax.tree.map(lambda x: x[:, 0], batch),
            step=jnp.asarray(0),
            key=key,
        )
        return state, batch, drawn, after, metrics

    return run


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list(AGENTS))
@hypothesis.settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.generate],
)
@hypothesis.given(
    seed=st.integers(0, 2**31 - 1),
    ends=st.sampled_from([0.0, 0.3, 1.0]),
    switches=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_an_update_is_as_restated_in_numpy(
    name: str, seed: int, ends: float, switches: float
) -> None:
    agent, _ = AGENTS[name]
    # Checked at each call it takes a tenth of a second; other tests check it.
    with jax.debug_key_reuse(False):
        state, batch, drawn, after, metrics = compiled(name)(
            jnp.asarray(seed), jnp.asarray(ends), jnp.asarray(switches)
        )
    expected = restated.update(agent, state, batch, drawn)
    gradient = expected["gradient"]

    for field in ("observation_weight", "trajectory_weight", "bias"):
        before = getattr(state.critics, field)
        moved = before - 0.5 * gradient[field].reshape(before.shape)
        close(getattr(after.critics, field), moved)
        target = getattr(state.target_critics, field)
        close(getattr(after.target_critics, field), 0.25 * moved + 0.75 * target)
    for field in ("weight", "log_scale"):
        close(
            getattr(after.actor.policy, field),
            getattr(state.actor.policy, field) - gradient[field],
        )
    for new, old, (weight, bias) in zip(
        after.actor.embeddings,
        state.actor.embeddings,
        gradient["embeddings"],
        strict=True,
    ):
        close(new.weight, old.weight - weight)
        close(new.bias, old.bias - bias)
    temperatures = state.log_temperatures
    for part, excess in (("action", "excess"), ("switch", "switch_excess")):
        before = getattr(temperatures, part)
        close(getattr(after.log_temperatures, part), before - 2 * expected[excess])
    assert set(metrics) == set(expected["metrics"])
    for metric, value in expected["metrics"].items():
        if not metric.startswith("explained"):
            close(metrics[metric], value)
        else:
            np.testing.assert_allclose(metrics[metric], value, rtol=1e-4, atol=1e-4)


def gradients(agent: eqrl.TAAC, of: str) -> dict[str, list[Array]]:
    """Of one loss, in everything it is given that is learnt."""
    state_key, batch_key, key = jr.split(jr.key(0), 3)
    spec = eqrl.EnvSpec(OBSERVATION_SIZE, ACTION_SIZE)
    state = agent.init(spec, key=state_key)
    ends = switches = jnp.zeros(())
    windows = random_windows(agent, None, ends, switches, key=batch_key)
    batch = jax.tree.map(lambda x: x[:, 0], windows)
    learnt = {
        "actor": state.actor,
        "critics": state.critics,
        "targets": state.target_critics,
        "switch": state.log_temperatures.switch,
    }

    def actor_loss(learnt: dict[str, Any]) -> Array:
        return taac_actor_loss(
            learnt["actor"],
            learnt["critics"],
            batch.observation,
            batch.extras.previous,
            0.5,
            jnp.exp(learnt["switch"]),
            agent.trajectory,
            key=key,
        )[0]

    def next_value(learnt: dict[str, Any]) -> Array:
        value, _ = taac_next_value(
            learnt["actor"],
            learnt["critics"],
            learnt["targets"],
            batch.next_observation,
            batch.extras.trajectory,
            jnp.exp(learnt["switch"]),
            agent.trajectory,
            key=key,
        )
        return jnp.sum(value)

    loss = {"actor": actor_loss, "value": next_value}[of]
    found = eqx.filter_jit(eqx.filter_grad(loss))(learnt)
    return {name: jax.tree.leaves(part) for name, part in found.items()}


def test_the_actors_loss_differentiates_the_actor_alone() -> None:
    found = gradients(AGENTS["constant"][0], "actor")
    assert all(np.any(leaf != 0) for leaf in found.pop("actor"))
    for leaf in jax.tree.leaves(found):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


def test_the_value_of_a_state_passes_no_gradient() -> None:
    for leaf in jax.tree.leaves(gradients(AGENTS["constant"][0], "value")):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
