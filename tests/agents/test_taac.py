"""How TAAC acts, and what it remembers, stores and measures."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl._agents.taac.update import (
    RepeatStatistics,
    default_switch_target_entropy,
    default_target_entropy,
    repeat_metrics,
)
from eqrl.losses._taac import switch_metrics
from eqrl.nn import AbstractDensity
from tests.agents_under_test import taac
from tests.toy import Clock, Drift, FixedDensity, GetKey, transitions_of


SPEC = eqrl.EnvSpec(observation_size=2, action_size=1)
NUM = 400


class FixedPolicy(eqx.Module):
    """Always the same action."""

    action: Float[Array, " act"]

    def __call__(self, observation: Float[Array, " obs"]) -> AbstractDensity:
        del observation
        return FixedDensity(action=self.action, log_prob=jnp.zeros(()))


class Taste(eqx.Module):
    """Values what is near an action: minus the distance, several times."""

    strength: Float[Array, ""]
    action: Float[Array, ""]

    def __call__(
        self, observation: Float[Array, " obs"], trajectory: Float[Array, " trajectory"]
    ) -> Float[Array, ""]:
        del observation
        return -self.strength * jnp.abs(trajectory[0] - self.action)


def taste(*, likes: float, strength: float) -> Taste:
    """A stack of one critic which likes an action."""
    return Taste(strength=jnp.array([strength]), action=jnp.array([likes]))


def make_state(*, output: float, likes: float, strength: float = 1e3) -> eqrl.TAACState:
    """A state whose actor proposes `output` and whose critic likes `likes`."""
    return eqx.tree_at(
        lambda state: (state.actor.policy, state.critics),
        random_state(),
        (FixedPolicy(jnp.array([output])), taste(likes=likes, strength=strength)),
    )


def make_agent(**options: Any) -> eqrl.TAAC:
    return taac(num_critics=1, **options)


@functools.cache
def random_state(linear: bool = False) -> eqrl.TAACState:
    """A state with random parameters: to compile `init` would take a second."""
    family = eqrl.LinearTrajectory() if linear else eqrl.ConstantTrajectory()
    agent = make_agent(trajectory=family)
    random = np.random.default_rng(0)

    def fill(x: jax.ShapeDtypeStruct) -> np.ndarray:
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        numbers = random.uniform(-1, 1, x.shape) if is_float else np.zeros(x.shape)
        return numbers.astype(x.dtype)

    state = jax.tree.map(fill, eqx.filter_eval_shape(agent.init, SPEC, key=jr.key(0)))
    zeros = jnp.zeros(()), jnp.zeros(())
    return eqx.tree_at(lambda s: (s.repeats.steps, s.repeats.beginnings), state, zeros)


def on(action: float, repeats: int) -> eqrl.TAACMemory:
    """The memory of an agent which has repeated an action."""
    trajectory = eqrl.Trajectory(action=jnp.array([action]))
    return eqrl.TAACMemory(trajectory=trajectory, repeats=jnp.array(repeats))


def act(
    agent: eqrl.TAAC,
    state: eqrl.TAACState,
    memory: eqrl.TAACMemory,
    *,
    mode: eqrl.Mode,
    key: PRNGKeyArray,
) -> tuple[Array, eqrl.TAACMemory, eqrl.TAACExtras]:
    """Many times from the same memory; arrays are NumPy's."""
    return jax.device_get(_act(agent, state, memory, mode, key))


@eqx.filter_jit
def _act(
    agent: eqrl.TAAC, state: Any, memory: Any, mode: eqrl.Mode, key: PRNGKeyArray
) -> Any:
    return jax.vmap(
        lambda key: agent.act(state, memory, jnp.zeros(2), mode=mode, key=key)
    )(jr.split(key, NUM))


class TestAct:
    def test_what_is_better_is_kept(self, getkey: GetKey) -> None:
        agent = make_agent()
        state = make_state(output=0.5, likes=-0.2)
        action, memory, extras = act(
            agent, state, on(-0.2, 3), mode="sample", key=getkey()
        )
        np.testing.assert_allclose(action, -0.2)
        assert np.all(memory.repeats == 4) and np.all(extras.repeats == 4)
        assert not np.any(extras.switch)

    def test_it_switches_to_what_is_better(self, getkey: GetKey) -> None:
        agent = make_agent()
        state = make_state(output=0.5, likes=0.5)
        action, memory, extras = act(
            agent, state, on(-0.2, 3), mode="sample", key=getkey()
        )
        np.testing.assert_allclose(action, 0.5)
        assert np.all(memory.repeats == 1) and np.all(extras.repeats == 1)
        assert np.all(extras.switch)
        np.testing.assert_allclose(extras.previous.action, -0.2)
        np.testing.assert_allclose(extras.trajectory.action, 0.5)

    def test_switches_are_drawn_as_likely_as_they_are(self, getkey: GetKey) -> None:
        # The advantage is 0.7 at a temperature of 0.5: e^1.4 / (1 + e^1.4) = 0.802.
        agent = make_agent()
        state = make_state(output=0.5, likes=0.5, strength=1.0)
        state = eqx.tree_at(
            lambda state: state.log_temperatures.switch, state, jnp.log(0.5)
        )
        _, _, extras = act(agent, state, on(-0.2, 1), mode="sample", key=getkey())
        assert abs(float(extras.switch.mean()) - 0.802) < 0.07

    def test_an_advantage_is_clipped(self, getkey: GetKey) -> None:
        agent = make_agent(advantage_clip=(-1.0, 0.0))
        state = make_state(output=0.5, likes=0.5)
        _, _, extras = act(agent, state, on(-0.2, 1), mode="sample", key=getkey())
        assert abs(float(extras.switch.mean()) - 0.5) < 0.08

    def test_greedily_a_draw_is_kept(self, getkey: GetKey) -> None:
        agent = make_agent()
        state = make_state(output=0.2, likes=0.0)
        _, _, extras = act(agent, state, on(-0.2, 1), mode="greedy", key=getkey())
        assert not np.any(extras.switch)

    def test_the_switch_is_random_before_anything_is_learned(
        self, getkey: GetKey
    ) -> None:
        agent = make_agent()
        state = make_state(output=0.5, likes=0.5)
        action, _, extras = act(agent, state, on(-0.2, 1), mode="random", key=getkey())
        assert abs(float(extras.switch.mean()) - 0.5) < 0.08
        np.testing.assert_allclose(action[~extras.switch], -0.2)
        fresh = np.asarray(action[extras.switch])
        assert fresh.min() < -0.9 and fresh.max() > 0.9 and abs(fresh.mean()) < 0.15

    def test_output_and_switch_explore_independently(self, getkey: GetKey) -> None:
        # The mode of the output is 0; samples are not. To switch is never better, so
        # greedily never done; where it is sampled it is a toss.
        agent = make_agent(epsilon=0.5)
        state = make_state(output=0.0, likes=0.0, strength=0.0)
        state = eqx.tree_at(
            lambda state: state.actor.policy, state, _StandardPolicy(jnp.zeros(1))
        )
        action, _, extras = act(agent, state, on(0.9, 1), mode="greedy", key=getkey())
        switch = np.asarray(extras.switch)
        explored = np.asarray(action[:, 0])[switch] != 0
        assert abs(switch.mean() - 0.25) < 0.07
        assert abs(explored.mean() - 0.5) < 0.15

    def test_with_epsilon_zero_nothing_is_left_to_chance(self, getkey: GetKey) -> None:
        agent, state = make_agent(), random_state()
        memory = agent.begin(state, SPEC, index=jnp.asarray(0), key=getkey())
        action, _, _ = act(agent, state, memory, mode="greedy", key=getkey())
        assert len(np.unique(action)) == 1


class _StandardPolicy(eqx.Module):
    """`tanh` of a standard normal."""

    mean: Float[Array, " act"]

    def __call__(self, observation: Float[Array, " obs"]) -> AbstractDensity:
        del observation
        return eqrl.nn.TanhNormal(mean=self.mean, log_scale=jnp.zeros_like(self.mean))


class TestMaxRepeatSteps:
    @pytest.mark.parametrize("mode", ["sample", "greedy"])
    def test_a_trajectory_is_done_at_most_that_often(
        self, mode: eqrl.Mode, getkey: GetKey
    ) -> None:
        agent = make_agent(max_repeat_steps=3)
        state = make_state(output=0.5, likes=-0.2)
        before, at = (
            act(agent, state, on(-0.2, repeats), mode=mode, key=getkey())
            for repeats in (2, 3)
        )
        np.testing.assert_allclose(before[0], -0.2)
        np.testing.assert_allclose(at[0], 0.5)
        assert np.all(before[1].repeats == 3) and np.all(at[1].repeats == 1)

    @pytest.mark.parametrize("faithful", [False, True])
    def test_a_forced_switch_is_stored_as_one_but_in_the_reference(
        self, faithful: bool, getkey: GetKey
    ) -> None:
        agent = make_agent(max_repeat_steps=3, faithful=faithful)
        state = make_state(output=0.5, likes=-0.2)
        action, memory, extras = act(
            agent, state, on(-0.2, 3), mode="sample", key=getkey()
        )
        np.testing.assert_allclose(action, 0.5)
        assert np.all(extras.switch == (not faithful))
        assert np.all(memory.repeats == 1)


class TestFirstStep:
    @pytest.mark.parametrize("mode", ["random", "sample", "greedy"])
    def test_it_is_on_zeros_which_may_be_kept(
        self, mode: eqrl.Mode, getkey: GetKey
    ) -> None:
        agent = make_agent()
        state = make_state(output=0.5, likes=0.0)
        memory = agent.begin(state, SPEC, index=jnp.asarray(0), key=getkey())
        action, after, extras = act(agent, state, memory, mode=mode, key=getkey())
        np.testing.assert_array_equal(extras.previous.action, np.zeros((NUM, 1)))
        np.testing.assert_array_equal(action[~extras.switch], 0.0)
        assert np.any(~extras.switch)
        assert np.all(after.repeats == 1)

    @pytest.mark.parametrize("mode", ["random", "sample"])
    def test_it_may_be_on_what_is_drawn(self, mode: eqrl.Mode, getkey: GetKey) -> None:
        agent = make_agent(
            randomize_first_trajectory=True, trajectory=eqrl.LinearTrajectory()
        )
        state = random_state(linear=True)
        memory = agent.begin(state, SPEC, index=jnp.asarray(0), key=getkey())
        _, _, extras = act(agent, state, memory, mode=mode, key=getkey())
        for part in jax.tree.leaves(extras.previous):
            assert part.min() < -0.9 and part.max() > 0.9
        assert extras.previous.velocity is not None
        assert np.all(extras.previous.action != extras.previous.velocity)

    def test_nothing_is_drawn_later_nor_at_evaluation(self, getkey: GetKey) -> None:
        agent = make_agent(randomize_first_trajectory=True)
        state = make_state(output=0.5, likes=0.0)
        memory = agent.begin(state, SPEC, index=jnp.asarray(0), key=getkey())
        _, _, greedy = act(agent, state, memory, mode="greedy", key=getkey())
        np.testing.assert_array_equal(greedy.previous.action, 0.0)
        _, _, later = act(agent, state, on(0.25, 1), mode="sample", key=getkey())
        np.testing.assert_array_equal(later.previous.action, 0.25)


@pytest.mark.parametrize("mode", ["random", "sample"])
def test_what_is_stored_fits_together_along_episodes(
    mode: eqrl.Mode, getkey: GetKey
) -> None:
    agent = make_agent(trajectory=eqrl.LinearTrajectory(), max_repeat_steps=3)
    env = Drift()

    @eqx.filter_jit
    def collect(state: eqrl.TAACState, key: PRNGKeyArray) -> Any:
        def step(actors: Any, key: PRNGKeyArray) -> Any:
            return eqrl.interact(agent, state, env, actors, mode=mode, key=key)

        start_key, key = jr.split(key)
        actors = eqrl.start(agent, state, env, num_envs=5, key=start_key)
        return jax.lax.scan(step, actors, jr.split(key, 40))[1]

    rows = jax.device_get(collect(random_state(linear=True), getkey()))
    extras = rows.extras
    done = (rows.terminated | rows.truncated)[:-1]
    assert done.any()
    np.testing.assert_array_equal(rows.action, extras.trajectory.action)
    for after, before in zip(
        jax.tree.leaves(extras.trajectory),
        jax.tree.leaves(extras.previous),
        strict=True,
    ):
        expected = np.where(done[:, :, None], 0.0, after[:-1])
        np.testing.assert_array_equal(before[1:], expected)
    repeats = extras.repeats
    expected = np.where(extras.switch[1:] | done, 1, repeats[:-1] + 1)
    np.testing.assert_array_equal(repeats[1:], expected)
    assert repeats.max() == 3


def test_vectors_of_rewards_are_learned_and_returned() -> None:
    agent = taac(reward_weights=(1.0, 0.0), discount=(0.9, 0.5), window_length=2)
    env = Clock(reward_size=2)
    trainer = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=8, capacity=100)

    def learn(key: PRNGKeyArray) -> Any:
        init_key, run_key, key = jr.split(key, 3)
        state, counts = trainer.init(agent, env, key=init_key)
        state, _, metrics = trainer.run(
            agent, env, state, counts, num_steps=24, key=run_key
        )
        return metrics, eqrl.evaluate(agent, state.agent, env, num_episodes=3, key=key)

    # What they are is tested for an update and for an episode, by themselves.
    metrics, evaluation = eqx.filter_eval_shape(learn, jr.key(0))
    assert evaluation.returns.shape == (3, 2)
    assert {"value_0_0", "td_error_1_1", "target_1"} <= set(metrics)


def test_the_mean_length_of_repeats_is_that_of_what_was_collected(
    getkey: GetKey,
) -> None:
    agent = make_agent()
    state = make_state(output=0.5, likes=0.0)
    row = transitions_of(
        jnp.zeros((4, 2)),
        action=jnp.zeros((4, 1)),
        extras=eqrl.TAACExtras(
            previous=eqrl.Trajectory(action=jnp.zeros((4, 1))),
            trajectory=eqrl.Trajectory(action=jnp.zeros((4, 1))),
            switch=jnp.ones(4, bool),
            repeats=jnp.array([1, 2, 3, 1]),
        ),
    )
    for _ in range(10):
        state = agent.observe(state, row)
    np.testing.assert_allclose(state.repeats.mean_length(), 2.0, rtol=1e-5)


def test_debug_adds_histograms_to_the_metrics() -> None:
    agent, env = taac(window_length=1, debug=True), Drift()

    def first_metrics(key: PRNGKeyArray) -> eqrl.Metrics:
        keys = jr.split(key, 4)
        state = agent.init(env.spec, key=keys[0])
        actors = eqrl.start(agent, state, env, num_envs=2, key=keys[1])
        _, row = eqrl.interact(agent, state, env, actors, mode="sample", key=keys[2])
        return agent.update(state, row, step=jnp.asarray(0), key=keys[3])[1]

    names = jax.eval_shape(first_metrics, jr.key(0))
    assert sum("_histogram_" in name for name in names) == 20


def test_histograms_are_shares() -> None:
    keep = np.array([0.0, 0.05, 0.55, 1.0], np.float32)
    probabilities = np.stack([keep, 1 - keep], axis=1)
    measure = jax.jit(switch_metrics, static_argnames="histograms")
    metrics = measure(probabilities, np.zeros(4, np.float32), histograms=True)
    metrics = jax.device_get(metrics)
    shares = [float(metrics[f"keep_probability_histogram_{i:02d}"]) for i in range(10)]
    assert shares == [0.5, 0, 0, 0, 0, 0.25, 0, 0, 0, 0.25]
    measure = jax.jit(repeat_metrics, static_argnames="histograms")
    metrics = measure(
        np.array([1, 1, 2, 30], np.int32),
        RepeatStatistics(steps=jnp.ones(()), beginnings=jnp.ones(())),
        histograms=True,
    )
    shares = [float(metrics[f"repeat_histogram_{i:02d}"]) for i in range(10)]
    assert shares == [0.5, 0.25, 0, 0, 0, 0, 0, 0, 0, 0.25]


def test_default_target_entropies_are_totals() -> None:
    assert default_target_entropy(2) == pytest.approx(2 * math.log(0.2))
    assert default_switch_target_entropy() == pytest.approx(0.32508, abs=1e-5)
