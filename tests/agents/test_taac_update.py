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
from eqrl.losses._taac import critic_metrics
from tests.toy import make_linear_gaussian, transitions_of

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


# Each is one program to compile, so each covers several options.
AGENTS = {
    "constant, multi step, vector": (small(target="multi_step", target_period=2), 2),
    "linear, clipped, single transitions, Huber": (
        small(
            trajectory=eqrl.LinearTrajectory(),
            advantage_clip=(-0.1, 0.3),
            window_length=1,
            num_critics=1,
            td_loss=optax.huber_loss,
        ),
        None,
    ),
    "linear, not inverse, sampled": (
        small(trajectory=eqrl.LinearTrajectory(inverse=False), bootstrap="sampled"),
        None,
    ),
    "quadratic, weighted vector": (
        small(
            trajectory=eqrl.QuadraticTrajectory(),
            discount=(0.9, 0.5, 0.0),
            reward_weights=(1.0, -0.5, 0.0),
            target_entropy=-1.0,
            switch_target_entropy=0.2,
        ),
        3,
    ),
    "quadratic, not inverse, faithful, one step, weighted vector": (
        small(
            trajectory=eqrl.QuadraticTrajectory(inverse=False),
            reward_weights=(0.0, -2.0),
            target="one_step",
            faithful=True,
        ),
        2,
    ),
}


@functools.cache
def shapes(name: str) -> eqrl.TAACState:
    """The shapes of a state, once: tracing `init` takes a tenth of a second."""
    agent, reward_size = AGENTS[name]
    spec = eqrl.EnvSpec(
        observation_size=OBSERVATION_SIZE,
        action_size=ACTION_SIZE,
        reward_size=reward_size,
    )
    return eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))


def random_state(name: str, random: np.random.Generator) -> eqrl.TAACState:
    """A state with random parameters, in which the targets are not the critics."""
    # In NumPy, as all that is compared: operations of JAX would cost more than updates.
    state = jax.tree.map(
        lambda x: np.asarray(random.uniform(-1, 1, x.shape), x.dtype),
        shapes(name),
    )
    zero = np.zeros((), np.float32)
    return eqx.tree_at(
        lambda s: (s.repeats.steps, s.repeats.beginnings), state, (zero, zero)
    )


def random_windows(
    name: str, ends: float, switches: float, random: np.random.Generator
) -> eqrl.Transition[eqrl.TAACExtras]:
    """Windows that contain ends of episodes, of which half terminate."""
    agent, reward_size = AGENTS[name]
    shape = (WINDOWS, agent.window_length)
    reward_shape = shape if reward_size is None else (*shape, reward_size)
    end = random.random(shape) < ends
    terminates = random.random(shape) < 0.5
    parts = agent.trajectory.num_parts
    numbers = random.uniform(-1, 1, (2, parts, *shape, ACTION_SIZE))
    previous, trajectory = (
        eqrl.Trajectory(*map(_floats, numbers[index])) for index in range(2)
    )
    return transitions_of(
        _floats(random.normal(size=(*shape, OBSERVATION_SIZE))),
        action=trajectory.action,
        reward=_floats(random.normal(size=reward_shape)),
        next_observation=_floats(random.normal(size=(*shape, OBSERVATION_SIZE))),
        terminated=jnp.asarray(end & terminates),
        truncated=jnp.asarray(end & ~terminates),
        extras=eqrl.TAACExtras(
            previous=previous,
            trajectory=trajectory,
            switch=jnp.asarray(random.random(shape) < switches),
            repeats=jnp.asarray(random.integers(1, 4, shape), int),
        ),
    )


def _floats(numbers: np.ndarray) -> Array:
    return jnp.asarray(numbers, jnp.float32)


@functools.partial(jax.jit, static_argnums=1)
def draws(seed: Array, size: int) -> tuple[Array, Array, Array]:
    return restated.draws(jr.key(seed), size, ACTION_SIZE)


@eqx.filter_jit
def update(
    agent: eqrl.TAAC, state: eqrl.TAACState, batch: Any, seed: Array, step: Array
) -> tuple[eqrl.TAACState, eqrl.Metrics]:
    return agent.update(state, batch, step=step, key=jr.key(seed))


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
    step=st.integers(0, 3),
)
def test_an_update_is_as_restated_in_numpy(
    name: str, seed: int, ends: float, switches: float, step: int
) -> None:
    agent, _ = AGENTS[name]
    random = np.random.default_rng(seed)
    state = random_state(name, random)
    batch = random_windows(name, ends, switches, random)
    # As the replay gives them.
    given = batch
    if agent.window_length == 1:
        given = jax.tree.map(lambda x: np.asarray(x)[:, 0], batch)
    drawn = draws(jnp.asarray(seed), WINDOWS * agent.window_length)
    after, metrics = update(agent, state, given, jnp.asarray(seed), jnp.asarray(step))
    drawn, batch, after, metrics = jax.device_get((drawn, batch, after, metrics))
    expected = restated.update(agent, state, batch, drawn)
    gradient = expected["gradient"]

    moves = (step + 1) % agent.target_period == 0
    for field in ("observation_weight", "trajectory_weight", "bias"):
        before = getattr(state.critics, field)
        moved = before - 0.5 * gradient[field].reshape(before.shape)
        close(getattr(after.critics, field), moved)
        target = getattr(state.target_critics, field)
        if moves:
            target = 0.25 * moved + 0.75 * target
        close(getattr(after.target_critics, field), target)
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


def test_of_targets_that_are_all_equal_nothing_can_be_explained() -> None:
    metrics = critic_metrics(jnp.ones((2, 64)), jnp.full(64, 0.1))
    assert np.isnan(metrics["explained_variance_0"])


def test_which_parts_the_losses_differentiate() -> None:
    """The actor's loss only the actor; the value of a state nothing."""
    name = "linear, not inverse, sampled"
    family = AGENTS[name][0].trajectory
    random = np.random.default_rng(0)
    state = random_state(name, random)
    windows = random_windows(name, 0.0, 0.0, random)
    batch = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[:, 0]), windows)
    learned = {
        "actor": state.actor,
        "critics": state.critics,
        "targets": state.target_critics,
        "switch": state.log_temperatures.switch,
    }

    def actor_loss(learned: dict[str, Any]) -> Array:
        return taac_actor_loss(
            learned["actor"],
            learned["critics"],
            batch.observation,
            batch.extras.previous,
            0.5,
            jnp.exp(learned["switch"]),
            family,
            key=jr.key(1),
        )[0]

    def next_value(learned: dict[str, Any]) -> Array:
        value, _ = taac_next_value(
            learned["actor"],
            learned["critics"],
            learned["targets"],
            batch.next_observation,
            batch.extras.trajectory,
            jnp.exp(learned["switch"]),
            family,
            key=jr.key(2),
        )
        return jnp.sum(value)

    of_loss, of_value = eqx.filter_jit(
        lambda learned: tuple(
            eqx.filter_grad(loss)(learned) for loss in (actor_loss, next_value)
        )
    )(learned)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(of_loss.pop("actor")))
    for leaf in jax.tree.leaves([of_loss, of_value]):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
