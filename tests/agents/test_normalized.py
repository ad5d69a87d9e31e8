import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

from eqrl import (
    EnvSpec,
    Metrics,
    Mode,
    Normalized,
    NormalizedState,
    RunningStatistics,
    Trainer,
    Transition,
    evaluate,
    jit_init,
    jit_run,
)
from tests.toy import Drift, GetKey, Idle, Learner, random_transitions, same


_SPEC = EnvSpec(observation_size=3, action_size=1)


class _SeenState(eqx.Module):
    """The last observations that came with each call."""

    observed: Float[Array, "2 obs"]
    updated: Float[Array, "2 obs"]
    index: Int[Array, ""]


class _Looker(Idle):
    """Remembers what it sees. Its memory and extras are the observation acted on."""

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> _SeenState:
        del key
        nothing = jnp.zeros((2, spec.observation_size))
        return _SeenState(
            observed=nothing, updated=nothing + 0, index=jnp.zeros((), int)
        )

    def begin(
        self,
        state: _SeenState,
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, " obs"]:
        del state, key
        return jnp.full(spec.observation_size, index).astype(float)

    def act(
        self,
        state: _SeenState,
        memory: Float[Array, " obs"],
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], Float[Array, " obs"], Float[Array, " obs"]]:
        del state, memory, mode, key
        return jnp.zeros(1), observation, observation

    def observe(
        self, state: _SeenState, transitions: Transition[Float[Array, " obs"]]
    ) -> _SeenState:
        return dataclasses.replace(state, observed=_first(transitions))

    def update(
        self,
        state: _SeenState,
        batch: Transition[Float[Array, " obs"]],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[_SeenState, Metrics]:
        del step, key
        state = dataclasses.replace(state, updated=_first(batch))
        return state, {"loss": jnp.zeros(())}


def _first(transitions: Transition) -> Float[Array, "2 obs"]:
    """The first observation and next observation."""
    obs = transitions.observation.shape[-1]
    return jnp.stack(
        [
            transitions.observation.reshape(-1, obs)[0],
            transitions.next_observation.reshape(-1, obs)[0],
        ]
    )


def _statistics_of(batches: list[np.ndarray]) -> RunningStatistics:
    size = batches[0].shape[1]
    statistics = RunningStatistics(
        count=jnp.zeros(()), mean=jnp.zeros(size), summed_squares=jnp.zeros(size)
    )
    for batch in batches:
        statistics = _count(statistics, jnp.asarray(batch))
    return statistics


@eqx.filter_jit
def _count(statistics: RunningStatistics, batch: Array) -> RunningStatistics:
    return statistics.update(batch)


@eqx.filter_jit
def _normalize(statistics: RunningStatistics, observation: Array) -> Array:
    return statistics.normalize(observation)


@eqx.filter_jit
def _observe(
    agent: Normalized, state: NormalizedState, transitions: Transition
) -> NormalizedState:
    return agent.observe(state, transitions)


@eqx.filter_jit
def _update(
    agent: Normalized, state: NormalizedState, batch: Transition, key: PRNGKeyArray
) -> tuple[NormalizedState, Metrics]:
    return agent.update(state, batch, step=jnp.array(0), key=key)


def _observed(
    getkey: GetKey,
) -> tuple[Normalized, NormalizedState[_SeenState], Transition]:
    """After one batch of 6 observations with mean about 5 and deviation about 3."""
    agent = Normalized(_Looker())
    state = agent.init(_SPEC, key=getkey())
    transitions: Any = random_transitions(
        getkey(), 6, observation_size=3, action_size=1
    )
    transitions = dataclasses.replace(
        transitions,
        observation=jnp.asarray(5 + 3 * np.asarray(transitions.observation)),
    )
    return agent, _observe(agent, state, transitions), transitions


class TestRunningStatistics:
    @pytest.mark.parametrize("sizes", [[40], [1] * 40, [1, 4, 30, 5]])
    @pytest.mark.parametrize("offset", [0.0, 1e4])
    def test_mean_and_variance_are_those_of_all_observations(
        self, sizes: list[int], offset: float
    ) -> None:
        generator = np.random.default_rng(0)
        scale = np.array([0.5, 1.0, 4.0])
        data = (offset + scale * generator.normal(size=(40, 3))).astype(np.float32)
        statistics = _statistics_of(np.split(data, np.cumsum(sizes)[:-1]))
        exact = data.astype(np.float64)
        np.testing.assert_allclose(
            statistics.mean, exact.mean(axis=0), rtol=1e-6, atol=1e-6
        )
        # At 1e4 an observation is itself known to 1e-3 only.
        np.testing.assert_allclose(
            statistics.variance(), exact.var(axis=0), rtol=1e-4 if offset == 0 else 1e-2
        )

    def test_a_large_mean_follows_many_small_batches(self) -> None:
        generator = np.random.default_rng(0)
        data = generator.normal(1e4, size=(20_000, 2)).astype(np.float32)
        # The mean must follow, though a batch moves it by less than its last digit.
        data[10_000:] += 3
        start = _statistics_of([data[:1]])
        statistics, _ = jax.lax.scan(
            lambda statistics, x: (statistics.update(x[None]), None),
            start,
            jnp.asarray(data[1:]),
        )
        exact = data.astype(np.float64)
        np.testing.assert_allclose(statistics.mean, exact.mean(axis=0), atol=0.002)
        np.testing.assert_allclose(statistics.variance(), exact.var(axis=0), rtol=0.01)

    @pytest.mark.parametrize("size", [1, 100])
    def test_variance_does_not_grow_beyond_what_a_float_can_count(
        self, size: int
    ) -> None:
        # As after 2**24 batches of mean 5 and variance 4; then 2,000 of variance 1.
        count = jnp.float32(2**24 * size)
        generator = np.random.default_rng(0)
        data = generator.normal(5, 1, size=(2_000, size, 3)).astype(np.float32)
        statistics, _ = jax.lax.scan(
            lambda statistics, x: (statistics.update(x), None),
            RunningStatistics(
                count=count,
                mean=jnp.full(3, 5.0),
                summed_squares=jnp.full(3, 4 * count),
            ),
            jnp.asarray(data),
        )
        # A moving average over 2**20 batches.
        expected = 1 + 3 * np.exp(-2_000 / 2**20)
        np.testing.assert_allclose(statistics.variance(), expected, rtol=5e-4)
        np.testing.assert_allclose(statistics.mean, np.full(3, 5), atol=1e-3)

    def test_variance_is_one_before_anything_is_seen(self) -> None:
        statistics = RunningStatistics(
            count=jnp.zeros(()), mean=jnp.zeros(2), summed_squares=jnp.zeros(2)
        )
        np.testing.assert_array_equal(statistics.variance(), [1, 1])

    @pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)])
    def test_normalize_takes_any_leading_axes(self, shape: tuple[int, ...]) -> None:
        data = np.random.default_rng(0).normal(5, 3, size=(50, 3)).astype(np.float32)
        observation = jnp.asarray(np.arange(np.prod(shape)).reshape(shape), float)
        normalized = _normalize(_statistics_of([data]), observation)
        expected = (np.asarray(observation) - data.mean(axis=0)) / data.std(axis=0)
        np.testing.assert_allclose(normalized, expected, rtol=1e-4)

    def test_an_observation_that_never_changes_becomes_zero(self) -> None:
        # Sums of several times 1000.3 are rounded, and with them their mean.
        statistics = _statistics_of([np.full((16, 1), 1000.3, np.float32)] * 3)
        normalized = _normalize(statistics, jnp.array([1000.3]))
        np.testing.assert_array_equal(normalized, [0])


class TestNormalized:
    def test_agent_acts_on_normalized_observations(self, getkey: GetKey) -> None:
        agent, state, _ = _observed(getkey)
        observation = jnp.array([5.0, 0.0, -2.0])
        _, memory, extras = agent.act(
            state, jnp.zeros(3), observation, mode="sample", key=getkey()
        )
        expected = state.statistics.normalize(observation)
        np.testing.assert_array_equal(extras, expected)
        np.testing.assert_array_equal(memory, expected)
        assert np.all(np.abs(expected - observation) > 0.1)

    def test_agent_sees_nothing_beyond_the_clip(self, getkey: GetKey) -> None:
        _, state, transitions = _observed(getkey)
        agent = Normalized(_Looker(), clip=0.5)
        observation = jnp.array([1e3, -1e3, float(state.statistics.mean[2])])
        expected = [0.5, -0.5, 0]
        _, _, acted = agent.act(
            state, jnp.zeros(3), observation, mode="sample", key=getkey()
        )
        np.testing.assert_array_equal(acted, expected)
        batch = dataclasses.replace(
            transitions,
            observation=jnp.tile(observation, (6, 1)),
            next_observation=jnp.tile(-observation, (6, 1)),
        )
        after, _ = _update(agent, state, batch, getkey())
        np.testing.assert_array_equal(after.agent.updated[0], expected)
        np.testing.assert_array_equal(after.agent.updated[1, :2], [-0.5, 0.5])

    def test_a_clip_that_is_not_positive_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"`clip=0`.*\(0, inf\)"):
            Normalized(_Looker(), clip=0.0)

    def test_agent_observes_transitions_normalized_with_themselves_counted(
        self, getkey: GetKey
    ) -> None:
        _, state, transitions = _observed(getkey)
        data = np.asarray(transitions.observation)
        mean, deviation = data.mean(axis=0), data.std(axis=0)
        expected = [
            (data[0] - mean) / deviation,
            (np.asarray(transitions.next_observation)[0] - mean) / deviation,
        ]
        np.testing.assert_allclose(state.agent.observed, expected, rtol=1e-4)

    @pytest.mark.parametrize("length", [1, 4])
    def test_agent_learns_from_normalized_batches(
        self, length: int, getkey: GetKey
    ) -> None:
        agent, state, _ = _observed(getkey)
        batch: Any = random_transitions(
            getkey(), 2 * length, observation_size=3, action_size=1
        )
        if length > 1:
            batch = jax.tree.map(
                lambda x: jnp.asarray(np.asarray(x).reshape(2, length, *x.shape[1:])),
                batch,
            )
        expected = state.statistics.normalize(_first(batch))
        state, _ = _update(agent, state, batch, getkey())
        np.testing.assert_allclose(state.agent.updated, expected, rtol=1e-5)

    def test_statistics_are_those_of_every_state_acted_in_and_the_replay_holds_them(
        self, getkey: GetKey
    ) -> None:
        # Warm-up included; with room for all of it the replay says what there was.
        agent, env = Normalized(_Looker()), Drift()
        trainer = Trainer(num_envs=2, batch_size=4, capacity=60, warmup_steps=10)
        state, counts = jit_init(trainer, agent, env, key=getkey())
        state, _, _ = jit_run(
            trainer, agent, env, state, counts, num_steps=60, key=getkey()
        )
        data = state.replay.data
        seen = np.asarray(data.observation, np.float64).reshape(-1, 2)
        assert state.agent.statistics.count == 60
        np.testing.assert_allclose(
            state.agent.statistics.mean, seen.mean(axis=0), rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            state.agent.statistics.variance(), seen.var(axis=0), rtol=1e-4
        )
        # The replay holds what the environment gave.
        np.testing.assert_array_equal(
            data.observation[..., 1], data.timestep.astype(float)
        )

    def test_evaluation_acts_with_the_statistics_and_does_not_move_them(
        self, getkey: GetKey
    ) -> None:
        agent, env = Normalized(_Looker()), Drift()
        state = agent.init(env.spec, key=getkey())
        statistics = _statistics_of([np.array([[4.0, 1.0], [8.0, 3.0]], np.float32)])
        state = NormalizedState(agent=state.agent, statistics=statistics)
        evaluation = evaluate(
            agent,
            state,
            env,
            num_episodes=2,
            key=getkey(),
            descriptor=_observation_and_what_was_seen,
        )
        given, seen = evaluation.descriptors
        # Mean 6 and 2, deviation 2 and 1, throughout.
        np.testing.assert_allclose(
            seen, (np.asarray(given) - [6, 2]) / [2, 1], rtol=1e-4, atol=1e-4
        )
        assert evaluation.lengths.shape == (2,)

    def test_an_update_reports_the_statistics_and_does_not_move_them(
        self, getkey: GetKey
    ) -> None:
        agent, state, transitions = _observed(getkey)
        batch: Any = random_transitions(getkey(), 2, observation_size=3, action_size=1)
        after, metrics = _update(agent, state, batch, getkey())
        assert bool(eqx.tree_equal(after.statistics, state.statistics))
        data = np.asarray(transitions.observation)
        assert set(metrics) == {"loss", "observation_mean", "observation_std"}
        np.testing.assert_allclose(metrics["observation_mean"], data.mean(), rtol=1e-5)
        np.testing.assert_allclose(
            metrics["observation_std"], data.std(axis=0).mean(), rtol=1e-5
        )

    def test_what_critics_see_has_statistics_of_its_own(self, getkey: GetKey) -> None:
        agent = Normalized(_Looker(), clip=1.5)
        assert agent.init(_SPEC, key=getkey()).critic_statistics is None
        spec = dataclasses.replace(_SPEC, critic_observation_size=2)
        state = agent.init(spec, key=getkey())
        before, after = 5.0 + 3.0 * jr.normal(getkey(), (2, 20, 2))
        transitions = dataclasses.replace(
            random_transitions(getkey(), 20, observation_size=3, action_size=1),
            critic_observation=before,
            next_critic_observation=after,
        )
        state = agent.observe(state, transitions)
        seen: Any = agent.inner_transitions(state, transitions)
        both = transitions.for_critics
        assert same((both.observation, both.next_observation), (before, after))
        before, after = np.asarray(before), np.asarray(after)
        mean, deviation = np.mean(before, axis=0), np.std(before, axis=0)
        for given, inner in (
            (before, seen.critic_observation),
            (after, seen.next_critic_observation),
        ):
            expected = np.clip((given - mean) / deviation, -1.5, 1.5)
            np.testing.assert_allclose(inner, expected, atol=1e-5)
        updated, metrics = agent.update(
            state, transitions, step=jnp.zeros((), int), key=getkey()
        )
        assert same(updated.critic_statistics, state.critic_statistics)
        mean = np.mean(transitions.observation)
        np.testing.assert_allclose(metrics["observation_mean"], mean, rtol=1e-4)

    def test_sequence_length_is_its_agents(self) -> None:
        assert Normalized(_Looker(length=4)).sequence_length == 4

    def test_memory_begins_as_its_agents(self, getkey: GetKey) -> None:
        agent = Normalized(_Looker())
        state = agent.init(_SPEC, key=getkey())
        memory = agent.begin(state, _SPEC, index=jnp.array(3), key=getkey())
        np.testing.assert_array_equal(memory, [3, 3, 3])

    def test_it_can_be_nested(self, getkey: GetKey) -> None:
        # What is normalized once has nothing left to normalize but the first steps.
        agent = Normalized(Normalized(_Looker()))
        state = agent.init(_SPEC, key=getkey())
        transitions: Any = random_transitions(
            getkey(), 50, observation_size=3, action_size=1
        )
        state = _observe(agent, state, transitions)
        np.testing.assert_allclose(state.agent.statistics.mean, np.zeros(3), atol=1e-5)
        np.testing.assert_allclose(
            state.agent.statistics.variance(), np.ones(3), rtol=1e-4
        )


def _observation_and_what_was_seen(
    transitions: Transition, mask: Array
) -> tuple[Array, Array]:
    del mask
    return transitions.observation, transitions.extras


def test_keys_of_the_wrapped_agent_are_those_given(getkey: GetKey) -> None:
    key = getkey()
    inner = Learner().init(_SPEC, key=jr.clone(key))
    outer = Normalized(Learner()).init(_SPEC, key=key)
    assert bool(eqx.tree_equal(inner, outer.agent))
