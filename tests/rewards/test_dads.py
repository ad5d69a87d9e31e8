import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqrl
from docs.examples.plan_continuous_skills import refined
from docs.examples.plan_with_dads import plan
from eqrl._rewards.smerl import SMERLState

from ..skilled import skill_transitions
from ..toy import GetKey


SPEC = eqrl.EnvSpec(observation_size=4, action_size=2, state_descriptor_size=2)
ZERO = jnp.zeros((), int)
LINEAR = eqrl.nn.Features(())


def log_density(network: Any, rows: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Of a mixture of three normals of unit variance."""
    (layer,) = network.layers
    outputs = rows @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias)
    weight = np.exp(outputs[:, :3]) / np.exp(outputs[:, :3]).sum(1, keepdims=True)
    away = change[:, None] - outputs[:, 3:].reshape(len(rows), 3, 2)
    density = np.exp(-0.5 * np.sum(away**2, axis=2)) / (2 * np.pi)
    return np.log(np.sum(weight * density, axis=1))


def seen_by(kind: str, batch: Any) -> np.ndarray:
    parts = {
        "nothing": np.zeros((6, 0)),
        "descriptor": batch.state_descriptor,
        "observation": batch.observation,
    }
    return np.asarray(parts[kind], np.float64)


@pytest.mark.parametrize("kind", ["nothing", "descriptor", "observation"])
def test_a_change_is_compared_with_what_each_skill_would_do(
    kind: Any, getkey: GetKey
) -> None:
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    reward: Any = eqrl.DADS(
        eqrl.OneHotSkills(4, weights),
        lr=0.1,
        clip=1.5,
        num_components=3,
        dynamics_input=kind,
        make_network=LINEAR,
        make_optimizer=optax.sgd,
    )
    state = reward.init(SPEC, key=getkey())
    batch: Any = skill_transitions(getkey(), skill=jnp.eye(4)[jnp.arange(6) % 4])
    state = reward.observe(state, batch)
    change = np.asarray(batch.next_state_descriptor - batch.state_descriptor)
    normal = np.clip((change - change.mean(0)) / change.std(0), -1.5, 1.5)
    seen, skill = seen_by(kind, batch), np.asarray(batch.extras.skill)
    rows = lambda skill: np.concatenate([seen, skill], axis=1)
    own = log_density(state.network, rows(skill), normal)
    every = [
        log_density(state.network, rows(np.tile(one, (6, 1))), normal)
        for one in np.eye(4)
    ]
    expected = own - np.log(weights @ np.exp(every))
    assert np.all(np.exp(-expected) >= weights[np.arange(6) % 4])
    score = lambda state, batch: reward.reward(state, batch, step=ZERO, key=jr.key(0))
    np.testing.assert_allclose(score(state, batch), expected, rtol=1e-3, atol=1e-5)
    even = dataclasses.replace(reward, skills=eqrl.EvenOneHotSkills(4))
    alike = own - np.log(np.mean(np.exp(every), axis=0))
    found = even.reward(state, batch, step=ZERO, key=jr.key(0))
    np.testing.assert_allclose(found, alike, rtol=1e-3, atol=1e-5)
    folded = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), batch)
    again = score(state, folded).ravel()
    np.testing.assert_allclose(again, expected, rtol=1e-3, atol=1e-5)
    after, metrics = reward.update(state, batch, key=getkey())
    np.testing.assert_allclose(metrics["dynamics_loss"], -own.mean(), rtol=1e-4)
    _, metrics = reward.update(after, batch, key=getkey())
    assert metrics["dynamics_loss"] < -own.mean()

    # The mean of the mixture, in the units of the descriptor.
    (layer,) = state.network.layers
    outputs = rows(skill) @ np.asarray(layer.weight) + np.asarray(layer.bias)
    weight = np.exp(outputs[:, :3]) / np.exp(outputs[:, :3]).sum(1, keepdims=True)
    mean = np.sum(weight[..., None] * outputs[:, 3:].reshape(6, 3, 2), axis=1)
    found = reward.predicted_change(
        state, jnp.asarray(seen, jnp.float32), batch.extras.skill
    )
    expected = mean * change.std(0) + change.mean(0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_drawn_skills_are_compared_with_the_own_one_among_them(getkey: GetKey) -> None:
    skills = eqrl.UniformSkills(2)
    options: dict[str, Any] = {"num_components": 3, "make_network": LINEAR}
    reward: Any = eqrl.DADS(skills, num_samples=5, **options)
    begun = reward.init(SPEC, key=getkey())
    batch: Any = skill_transitions(getkey(), skill=jr.uniform(getkey(), (6, 2)))
    state = reward.observe(begun, batch)
    smerl = eqrl.SMERL(reward).observe(SMERLState(begun, jnp.zeros(())), batch)
    assert eqx.tree_equal(smerl.reward, state)
    key = getkey()
    score = reward.reward(state, batch, step=ZERO, key=key)
    draw = lambda key: skills.sample(index=ZERO, key=key)
    drawn = jax.vmap(jax.vmap(draw))(jr.split(key, (5, 6)))
    change = np.asarray(batch.next_state_descriptor - batch.state_descriptor)
    normal = (change - change.mean(0)) / change.std(0)
    own, *others = (
        log_density(
            state.network,
            np.concatenate([seen_by("observation", batch), skill], axis=1),
            normal,
        )
        for skill in (np.asarray(batch.extras.skill), *np.asarray(drawn))
    )
    expected = own - np.log(np.mean(np.exp([own, *others]), axis=0))
    np.testing.assert_allclose(score, expected, rtol=1e-3, atol=1e-5)
    # A network that does not look at skills tells none apart.
    (layer,) = state.network.layers
    blind = layer.weight.at[-2:].set(0)
    state = eqx.tree_at(lambda state: state.network.layers[0].weight, state, blind)
    score = reward.reward(state, batch, step=ZERO, key=key)
    np.testing.assert_allclose(score, 0, atol=1e-5)


def test_a_plan_takes_the_skill_that_ends_nearest_to_the_goal() -> None:
    options: dict[str, Any] = {"num_components": 1, "make_network": LINEAR}
    reward: Any = eqrl.DADS(3, dynamics_input="descriptor", **options)
    with jax.ensure_compile_time_eval():
        state = reward.init(SPEC, key=jr.key(0))
    (layer,) = state.network.layers
    # Each skill has a step of its own, beside a logit, wherever it is.
    steps = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.4, 0.0], [0.0, 0.0, -1.0]])
    steps = jnp.concatenate([jnp.zeros((2, 3)), steps])
    parts = lambda network: (network.layers[0].weight, network.layers[0].bias)
    network = eqx.tree_at(parts, state.network, (steps, 0 * layer.bias))
    state = dataclasses.replace(state, network=network)
    begin = jnp.array([10.0, 0.0])
    for goal, num_steps, best in (
        ([11.2, 0.0], 3, 1),
        ([11.2, 0.0], 1, 0),
        ([13.0, 0.5], 3, 0),
        ([10.0, -2.0], 3, 2),
    ):
        chosen = plan(reward, state, begin, jnp.array(goal), num_steps=num_steps)
        np.testing.assert_array_equal(chosen, np.eye(3)[best])


def test_a_plan_of_continuous_skills_turns_where_its_goal_is_reached() -> None:
    options: dict[str, Any] = {"num_components": 1, "make_network": LINEAR}
    reward: Any = eqrl.DADS(eqrl.UniformSkills(2), dynamics_input="nothing", **options)
    with jax.ensure_compile_time_eval():
        state = reward.init(SPEC, key=jr.key(0))
    (layer,) = state.network.layers
    # A step is as long as its skill, without the logit.
    steps = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    parts = lambda network: (network.layers[0].weight, network.layers[0].bias)
    network = eqx.tree_at(parts, state.network, (steps, 0 * layer.bias))
    state = dataclasses.replace(state, network=network)
    better = eqx.filter_jit(refined)
    begin, plan = jnp.array([10.0, 0.0]), jnp.zeros((4, 2))
    options = {"num_steps": 5, "key": jr.key(1)}
    far = better(reward, state, begin, jnp.array([10.0, -50.0]), plan, **options)
    assert np.all(far[:, 1] < -0.8)
    near = better(reward, state, begin, begin, plan, **options)
    assert np.all(np.abs(near) < 0.2)
