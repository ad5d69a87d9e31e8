"""Agents learn from the transitions of a data set, and from nothing else."""

import dataclasses
import inspect
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from docs.examples.awac import AWAC
from docs.examples.behavior_cloning import BC
from eqrl._training.offline import fitting_transitions

from ..agents_under_test import all_finite
from ..toy import Scribe, ScribeMemory


SPEC = eqrl.EnvSpec(observation_size=2, action_size=1)
KEY = jr.key(7)


def arrays(num_rows: int = 12, **others: Any) -> dict[str, Any]:
    """Episodes of five steps, of which each second one terminates."""
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(num_rows + 1, 2))
    end = np.arange(num_rows) % 5 == 4
    next_observation = observation[1:].copy()
    next_observation[end] += 1
    given = {
        "observation": observation[:-1],
        "action": generator.uniform(-1, 1, (num_rows, 1)),
        "reward": np.arange(num_rows) + 1.0,
        "next_observation": next_observation,
        "terminated": end & (np.arange(num_rows) % 10 == 9),
    }
    return given | others


def data(num_rows: int = 12, **others: Any) -> eqrl.Transition[None]:
    return eqrl.transitions_from_arrays(**arrays(num_rows, **others))


def test_ends_and_timesteps_are_found_where_they_are_not_given() -> None:
    transitions = data()
    np.testing.assert_array_equal(np.flatnonzero(transitions.terminated), [9])
    # Where the next row is another episode's, and at the end of the recording.
    np.testing.assert_array_equal(np.flatnonzero(transitions.truncated), [4, 11])
    np.testing.assert_array_equal(
        transitions.timestep, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    )
    assert transitions.observation.dtype == transitions.reward.dtype == jnp.float32
    # What is given counts, but nothing ends in two ways.
    given = data(truncated=np.arange(12) % 3 == 0)
    np.testing.assert_array_equal(np.flatnonzero(given.truncated), [0, 3, 6])
    choices = data(action=np.arange(12), observation=np.zeros((12, 2, 1)))
    assert choices.action.dtype == jnp.int32 and choices.observation.shape == (12, 2)


def test_rows_continue_where_all_elements_are_equal_and_nothing_ended() -> None:
    # Numbers of another float type are compared as those that are stored.
    given = arrays()
    path = np.random.default_rng(1).normal(size=(13, 2))
    two_types = data(
        observation=path[:-1].astype(np.float32), next_observation=path[1:]
    )
    np.testing.assert_array_equal(np.flatnonzero(two_types.truncated), [11])
    # One element of two in common is another state.
    shared = given["next_observation"].copy()
    shared[4] = given["observation"][5] + [0.0, 1.0]
    others = data(next_observation=shared)
    assert bool(others.truncated[4]) and int(others.timestep[5]) == 0
    # An episode that begins where the one before it ended begins at 0 all the same.
    shared = given["next_observation"].copy()
    shared[9] = given["observation"][10]
    np.testing.assert_array_equal(
        data(next_observation=shared).timestep, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    )


def test_flags_are_one_a_row_and_known() -> None:
    flags = arrays()["terminated"]
    for name in ("terminated", "truncated"):
        column: dict[str, Any] = {name: flags[:, None]}
        with pytest.raises(ValueError, match=rf"`{name}` has the shape \(12, 1\).*12,"):
            data(**column)
        unknown: dict[str, Any] = {name: np.where(flags, np.nan, 0.0)}
        with pytest.raises(ValueError, match=f"`{name}` holds `nan`"):
            data(**unknown)
    assert eqx.tree_equal(data(terminated=flags.astype(float)), data())


def test_rows_of_alternating_environments_are_refused_until_they_are_reordered() -> (
    None
):
    whole = arrays(10)
    mixed = {
        name: np.stack([x[:5], x[5:]], axis=1).reshape(x.shape)
        for name, x in whole.items()
    }
    choices: dict[str, Any] = {"action": np.zeros(10, int)}
    spec = eqrl.EnvSpec(2, action=eqrl.spaces.Discrete(2))
    agent = eqrl.DQN(return_steps=3)
    data_set = eqrl.transitions_from_arrays(**(mixed | choices))
    with pytest.raises(ValueError, match=r"no row .* begins with the .*swapaxes\(0, 1"):
        eqrl.train_offline(agent, data_set, spec, num_updates=1, key=KEY)
    # As the message says.
    reordered = {
        name: x.reshape(-1, 2, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        for name, x in mixed.items()
    }
    data_set = eqrl.transitions_from_arrays(**(reordered | choices))
    assert eqx.tree_equal(data_set, data(10, **choices))
    assert fitting_transitions(agent, data_set, spec) is not None
    # Episodes that really have one step have ended.
    bandit = data(10, terminated=np.ones(10, bool), **choices)
    assert fitting_transitions(agent, bandit, spec) is not None


def test_arrays_of_different_lengths_are_refused_with_their_lengths() -> None:
    arrays: dict[str, Any] = {
        "observation": np.zeros((4, 2)),
        "action": np.zeros((4, 1)),
        "reward": np.zeros(4),
        "next_observation": np.zeros((4, 2)),
        "terminated": np.zeros(4, bool),
    }
    # Without the checks of types, which would come first.
    make = inspect.unwrap(eqrl.transitions_from_arrays)
    for name in arrays:
        shorter = arrays | {name: arrays[name][:2]}
        with pytest.raises(ValueError, match=rf"rows, or none: .*`{name}` 2"):
            make(**shorter)
    with pytest.raises(ValueError, match="or none"):
        make(**{name: x[:0] for name, x in arrays.items()})


def test_a_replay_holds_the_last_rows_that_it_has_room_for() -> None:
    transitions = data(5)
    both = jax.tree.map(lambda x: np.stack([x, x[::-1]]), transitions)
    state, counts = eqrl.fill_replay(eqrl.ReplayBuffer(6, 4), both)
    # A ring, in which the fourth row is written over the first.
    np.testing.assert_array_equal(state.data.reward, [[4, 5, 3], [2, 1, 3]])
    # No sequence reaches from the last row into what an environment adds.
    assert np.all(state.data.terminated[:, 1] ^ state.data.truncated[:, 1])
    assert (int(counts.rows_kept), int(counts.rows_written)) == (5, 0)
    with pytest.raises(ValueError, match=r"axes \(1, 2, 5\)"):
        eqrl.fill_replay(eqrl.ReplayBuffer(6, 4), jax.tree.map(lambda x: x[None], both))
    with pytest.raises(ValueError, match="LatestRows, which holds the steps of one"):
        eqrl.fill_replay(eqrl.LatestRows(6, 2), both)


def clone(rate: float = 3e-2, **options: Any) -> eqrl.OfflineSolution[Any]:
    """Normalized behavior cloning, 300 updates by default."""
    observation = np.asarray(data(64).observation)
    # Many actions are at the border, where a density has no end.
    transitions = data(64, action=np.clip(2 * observation[:, :1], -1, 1))
    return eqrl.train_offline(
        eqrl.Normalized(BC(learning_rate=rate, hidden_sizes=())),
        transitions,
        SPEC,
        **{"num_updates": 300, "batch_size": 16, "log_every": 100, "key": KEY}
        | options,
    )


def test_rows_of_metrics_make_no_difference_and_data_are_observed_once() -> None:
    seen: list[tuple[int, float]] = []
    whole = clone()
    error = whole.metrics["action_error"]
    assert all_finite(whole.state) and error[-1] < 0.2 < error[0]
    solution = clone(
        log_every=140,
        callback=lambda update, row, solution: seen.append(
            (update, row["action_error"])
        ),
    )
    assert eqx.tree_equal(solution.state, whole.state)
    np.testing.assert_array_equal(solution.metrics["step"], [140, 280, 300])
    found = solution.metrics["action_error"]
    np.testing.assert_allclose(np.dot(found, [140, 140, 20]), np.sum(error) * 100, 1e-4)
    assert seen == [(140, found[0]), (280, found[1]), (300, found[2])]
    statistics = solution.state.statistics
    observation = arrays(64)["observation"]
    np.testing.assert_allclose(statistics.mean, observation.mean(axis=0), atol=1e-6)
    assert float(statistics.count) == 64


def test_a_callback_ends_it_with_the_row_from_which_it_goes_on() -> None:
    def enough(update: int, row: Any, solution: Any) -> bool:
        assert solution.metrics["step"][-1] == update
        return update > 150

    stopped = clone(callback=[enough])
    np.testing.assert_array_equal(stopped.metrics["step"], [100, 200])
    whole, resumed = clone(), clone(num_updates=100, initial=stopped)
    assert eqx.tree_equal(resumed.state, whole.state)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(resumed.metrics[name], values)
    # It stays as it was. Rows end where those of one call would.
    again = clone(num_updates=40, initial=stopped)
    again = clone(num_updates=70, initial=again)
    np.testing.assert_array_equal(again.metrics["step"], [100, 200, 240, 300, 310])
    assert eqx.tree_equal(again.state, clone(num_updates=10, initial=resumed).state)


def test_an_update_that_is_not_finite_ends_it_with_the_state_before() -> None:
    with pytest.raises(eqrl.NonFiniteError, match="At update 0 `actor_loss`") as error:
        clone(1e30)
    solution = error.value.solution
    assert solution.metrics == {} and all_finite(solution.state)


def test_sequences_are_learned_from_with_what_the_agent_stored() -> None:
    index = jnp.arange(12)
    extras = ScribeMemory(index=index, skill=jnp.zeros(12), age=index)
    transitions = eqx.tree_at(
        lambda x: x.extras, data(), extras, is_leaf=lambda x: x is None
    )
    solution = eqrl.train_offline(
        Scribe(length=3), transitions, SPEC, num_updates=0, key=KEY
    )
    assert int(solution.state.num_observed) == 12 and solution.metrics == {}
    solution = eqrl.train_offline(
        Scribe(length=3), transitions, SPEC, num_updates=3, batch_size=5, key=KEY
    )
    np.testing.assert_array_equal(solution.metrics["batch_size"], [15])
    # Each update has a key of its own, and none is that of `init`.
    keys = [jr.split(jr.fold_in(jr.fold_in(KEY, 1), step))[1] for step in range(3)]
    np.testing.assert_array_equal(
        solution.state.draws[:3], [float(jr.uniform(key)) for key in keys]
    )


three_steps = eqrl.DQN(return_steps=3)
choice = eqrl.EnvSpec(2, action=eqrl.spaces.Discrete(3))
with_nan = np.ones(12)
with_nan[3] = np.nan
REFUSED: dict[str, tuple[Any, Any, eqrl.EnvSpec, str]] = {
    "on-policy": (eqrl.PPO(), data(), SPEC, "`PPO` learns on-policy"),
    "axes": (BC(), jax.tree.map(lambda x: x[None], data()), SPEC, r"axes \(1, 12\)"),
    "size": (
        BC(),
        data(),
        eqrl.EnvSpec(3, 1),
        r"`transitions.observation` has .*\(12, 2",
    ),
    "nan": (BC(), data(reward=with_nan), SPEC, "`transitions.reward` is not .* is 3"),
    "nan in descriptors": (
        BC(),
        dataclasses.replace(
            data(),
            state_descriptor=jnp.zeros((12, 1)),
            next_state_descriptor=jnp.asarray(with_nan[:, None], float),
        ),
        SPEC,
        "`transitions.next_state_descriptor` is not .* is 3",
    ),
    "half": (
        BC(),
        dataclasses.replace(data(), state_descriptor=jnp.zeros((12, 1))),
        SPEC,
        "`transitions.next_state_descriptor` is None",
    ),
    "bounds": (
        BC(),
        data(action=np.full((12, 1), 2.0)),
        SPEC,
        "from 2 to 2, .*rescale",
    ),
    "below": (BC(), data(action=np.full((12, 1), -2.0)), SPEC, "from -2 to -2, .*resc"),
    "choices": (eqrl.DQN(), data(action=np.full(12, 3)), choice, "counts from 0 to 2"),
    "kind": (eqrl.DQN(), data(), choice, "the type float32, but .12,. and int32"),
    "extras": (
        Scribe(),
        data(),
        SPEC,
        "`Scribe` stores extras .* is none.*`eqrl.rollout`",
    ),
    "pieces": (
        three_steps,
        data(action=np.zeros(12, int), truncated=np.zeros(12)),
        choice,
        "row 4 of `transitions` ends no episode and row 5 is not",
    ),
    "few": (three_steps, data(2, action=np.zeros(2, int)), choice, "has 2 rows, fewer"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_does_not_fit_is_refused(name: str) -> None:
    agent, transitions, spec, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        eqrl.train_offline(agent, transitions, spec, num_updates=1, key=KEY)


def test_awac_weighs_actions_by_their_advantage() -> None:
    # With a rate of 0, what an update has changed is what it was. Networks are linear.
    agent = AWAC(learning_rate=0.0, temperature=0.5, max_weight=1.1, hidden_sizes=())
    generator = np.random.default_rng(1)
    state = jax.tree.map(
        lambda x: np.asarray(0.3 * generator.normal(size=x.shape), x.dtype),
        eqx.filter_eval_shape(agent.init, SPEC, key=KEY),
    )
    nothing = jax.tree.map(np.zeros_like, state.optimizers)
    state = eqx.tree_at(lambda state: state.optimizers, state, nothing)
    # The policy is sure of its action, so that chance plays no part.
    layer = state.actor.network.layers[0]
    layer.weight[:, 1], layer.bias[1] = 0, -20
    transitions = data()
    metrics = jax.jit(
        lambda state, step: agent.update(state, transitions, step=step, key=KEY)[1]
    )(state, 0)
    batch: Any = jax.tree.map(np.asarray, transitions)

    def act(observation: np.ndarray) -> np.ndarray:
        return np.tanh(observation @ layer.weight[:, :1] + layer.bias[:1])

    def values(critics: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        inputs = np.concatenate([observation, action], axis=1)
        network = critics.network.layers[0]
        return (inputs @ network.weight + network.bias[:, None])[..., 0]

    reached: Any = batch.next_observation
    next_value = values(state.targets, reached, act(reached)).min(axis=0)
    target = batch.reward + 0.99 * np.where(batch.terminated, 0, next_value)
    found = values(state.critics, batch.observation, batch.action)
    expected = 0.5 * np.mean((found - target) ** 2)
    np.testing.assert_allclose(metrics["critic_loss"], expected, rtol=1e-4)
    value = values(state.critics, batch.observation, act(batch.observation)).min(axis=0)
    weight = np.exp((found.min(axis=0) - value) / 0.5)
    assert np.any(weight > 1.1) and np.any(weight < 1.1)
    before = (np.arctanh(batch.action) - np.arctanh(act(batch.observation)))[:, 0]
    log_prob = -0.5 * (before / math.exp(-20)) ** 2
    expected = -np.mean(np.minimum(weight, 1.1) * log_prob)
    np.testing.assert_allclose(metrics["actor_loss"], expected, rtol=1e-3)
