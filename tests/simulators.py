"""What environments whose simulators live outside JAX are compared with, by hand."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

import eqrl
from eqrl import EnvSpec, Metrics, Mode, Transition
from eqrl.envs import AbstractEnv, _host
from eqrl.spaces import Box

from .toy import Idle, same


class Player(Idle):
    """Acts at random, and learns a number from each batch and key."""

    action: Any = eqx.field(default=Box(1), static=True)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> Float[Array, ""]:
        del spec
        return jr.normal(key)

    def act(
        self,
        state: Float[Array, ""],
        memory: None,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Array, None, None]:
        del state, memory, observation, mode
        return self.action.sample(key=key), None, None

    def update(
        self,
        state: Float[Array, ""],
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, ""], Metrics]:
        del step
        error = jnp.mean(batch.next_observation) - jnp.mean(batch.reward) * state
        return state + 0.01 * jnp.tanh(error) * jr.uniform(key), {"loss": error}


class Seen(Protocol):
    """A simulator by hand: what an agent sees of it, and how its episode goes on."""

    def begin(self) -> tuple[Any, Any]:
        """Begins an episode: its first observation and descriptor, in one vector."""
        ...

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """The observation, the reward, both flags, and the descriptor of a step."""
        ...


class Repeated:
    """A simulator by hand whose actions are repeated, until its own time limit."""

    def __init__(self, simulator: Seen, repeats: int, limit: int) -> None:
        self._simulator, self._repeats, self._limit = simulator, repeats, limit
        self._time = 0

    def begin(self) -> tuple[Any, Any]:
        self._time = 0
        return self._simulator.begin()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        total = np.float32(0)
        for _ in range(self._repeats - 1):
            seen, reward, terminated, truncated, place = self._one(action)
            total += np.float32(reward)
            if terminated or truncated:
                return seen, total, terminated, truncated, place
        seen, reward, *rest = self._one(action)
        return seen, total + np.float32(reward), *rest

    def _one(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self._time += 1
        seen, reward, terminated, _, place = self._simulator.step(action)
        truncated = self._time == self._limit and not terminated
        return seen, reward, terminated, truncated, place


class Stacked:
    """A simulator by hand of which the last two observations are seen."""

    def __init__(self, simulator: Seen) -> None:
        self._simulator = simulator
        self._last: Any = None

    def begin(self) -> tuple[Any, Any]:
        self._last, place = self._simulator.begin()
        return np.concatenate([self._last, self._last]), place

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        seen, *rest = self._simulator.step(action)
        before, self._last = self._last, seen
        return np.concatenate([before, seen]), *rest


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The seeds of all simulators that are made while the test runs, by group."""
    recorded: list[list[int]] = []
    made = _host.make_rows

    def recording(make: Any, arguments: Any, results: Any) -> None:
        recorded.append(arguments[1].tolist())
        made(make, arguments, results)

    monkeypatch.setattr(_host, "make_rows", recording)
    return recorded


def interacted(
    env: AbstractEnv[Any], *, num_envs: int, num_steps: int, key: PRNGKeyArray
) -> Transition[Any]:
    """The transitions of a random player, by environment and time."""
    interact = functools.partial(_interacted, env, num_envs, num_steps, key)
    return _host.checked_result(env, interact)


@eqx.filter_jit
def _interacted(
    env: AbstractEnv[Any], num_envs: int, num_steps: int, key: PRNGKeyArray
) -> Transition[Any]:
    agent = Player(action=env.spec.action)
    start_key, key = jr.split(key)
    actors = eqrl.start(agent, None, env, num_envs=num_envs, key=start_key)

    def step(actors: Any, key: PRNGKeyArray) -> tuple[Any, Transition[Any]]:
        return eqrl.interact(agent, None, env, actors, mode="sample", key=key)

    rows = lax.scan(step, actors, jr.split(key, num_steps))[1]
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)


def check_rows(
    rows: Transition[Any],
    seeds: list[int],
    by_hand: Callable[[int], Seen],
    observed: type = np.float32,
    reward_error: float = 0.0,
) -> None:
    """Checks that each environment's rows are those of a simulator stepped by hand.

    So no transition is lost and none invented, as each begins where the last one ended
    or where the next episode did.
    """
    rows = jax.tree.map(np.asarray, rows)
    assert rows.reward.dtype == np.float32
    assert rows.observation.dtype == rows.next_observation.dtype == observed
    assert rows.terminated.dtype == rows.truncated.dtype == np.bool_
    assert rows.timestep.dtype == np.int32
    assert len(seeds) == len(rows.reward)
    for index, seed in enumerate(seeds):
        of_env = jax.tree.map(lambda x, index=index: x[index], rows)
        expected = _rows_by_hand(by_hand(seed), of_env.action)
        for name, values in expected.items():
            given = getattr(of_env, name)
            np.testing.assert_allclose(
                given,
                np.asarray(values, given.dtype),
                rtol=0,
                atol=reward_error if name == "reward" else 0,
                err_msg=f"{name} of {index}",
            )


def _rows_by_hand(
    simulator: Seen, actions: Shaped[np.ndarray, "time ..."]
) -> dict[str, list[Any]]:
    rows: list[tuple[Any, ...]] = []
    timestep, (observation, place) = 0, simulator.begin()
    for action in actions:
        after, reward, terminated, truncated, next_place = simulator.step(action)
        row = (observation, after, reward, terminated, truncated, place, next_place)
        rows.append((*row, timestep))
        observation, place, timestep = after, next_place, timestep + 1
        if terminated or truncated:
            timestep, (observation, place) = 0, simulator.begin()
    names = ["observation", "next_observation", "reward", "terminated", "truncated"]
    names += ["state_descriptor", "next_state_descriptor", "timestep"]
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return {name: column for name, column in columns.items() if column[0] is not None}


TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=400)


def trained(env: AbstractEnv[Any], num_steps: int, **options: Any) -> Any:
    agent = Player(action=env.spec.action)
    options = {"key": jr.key(0), "log_every": 40} | options
    return eqrl.train(agent, env, TRAINER, num_steps=num_steps, **options)


def check_training(
    env: AbstractEnv[Any], seeds: list[list[int]], by_hand: Callable[[int], Seen]
) -> None:
    """Checks the rows that a training stores, and that it can be repeated and resumed.

    `seeds` are those of the fixture, and `env` was not used before.
    """
    whole, again = trained(env, 160), trained(env, 160)
    assert len(seeds) == 2 and seeds[0] == seeds[1]
    data = whole.trainer_state.replay.data
    check_rows(jax.tree.map(lambda x: x[:, :80], data), seeds[0], by_hand)
    _check_same(whole, again)
    # The second call goes on in the same episodes: it makes no simulators.
    first = trained(env, 80)
    second = trained(env, 80, initial=first)
    assert len(seeds) == 3
    _check_same(whole, second)
    stack = eqrl.train_seeds(
        Player(action=env.spec.action),
        env,
        TRAINER,
        num_seeds=2,
        num_steps=80,
        key=jr.key(7),
        log_every=40,
    )
    alone = trained(env, 80, key=jr.split(jr.key(7))[1])
    member = jax.tree.map(lambda x: x[1], stack.trainer_state.replay.data)
    assert same(member, alone.trainer_state.replay.data)
    assert same(stack.state[1], alone.state)


def _check_same(one: Any, other: Any) -> None:
    """Checks that two trainings are the same bit for bit, simulators aside."""
    assert same(one.state, other.state)
    assert same(one.trainer_state.replay, other.trainer_state.replay)
    actors, others = one.trainer_state.actors, other.trainer_state.actors
    assert same(actors.observation, others.observation)


def groups_of(env: AbstractEnv[Any]) -> Iterator[Any]:
    """The simulators of an environment that are not closed."""
    owner = _host._owner_of(env)
    return (group for group in _host.GROUPS.values() if group.owner == owner)
