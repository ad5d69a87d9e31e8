"""Replays that store frames about once, against whole observations in NumPy."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Int, PRNGKeyArray

import eqrl
from eqrl._disk.library import init_training
from eqrl._training.replay import first_held, transitions_at, truncate_last_row
from eqrl._types.data import Stacking
from eqrl.envs import AbstractEnv, ActionRepeat, FrameStack, Masked, Outcome, TimeLimit
from eqrl.envs._wrappers import stacking_of

from ..agents_under_test import ppo
from ..toy import same


ENVS, ROWS = 3, 32
STACKINGS = {
    "images": Stacking(4, 529, 1),
    "colors": Stacking(2, 400, 3),
    "vectors": Stacking(3, 1, 800),
    "single": Stacking(1, 1, 2100),
}


def counts_of(written: int | Array, kept: int | Array = 0) -> eqrl.Counts:
    number = lambda x: jnp.asarray(x, int)
    return eqrl.Counts(number(0), rows_written=number(written), rows_kept=number(kept))


def recorded(stacking: Stacking, num_rows: int, length: int) -> eqrl.Transition[None]:
    """Rows with the axes `(rows, envs)`, of episodes of one length after the first."""
    random, rows = np.random.default_rng(0), []
    shape = (ENVS, stacking.num_frames, stacking.frame_size)
    draw = lambda: random.integers(0, 256, shape).astype(np.uint8)
    frames = np.broadcast_to(draw()[:, :1], shape)
    timestep = np.zeros(ENVS, np.int32)
    for number in range(num_rows):
        after = np.concatenate([frames[:, 1:], draw()[:, :1]], axis=1)
        count, left = np.divmod(number + 5 * np.arange(ENVS), length)
        over, terminates = left == length - 1, count % 2 == 0
        row = {
            "observation": stacking.together(frames),
            "action": random.random((ENVS, 1), np.float32),
            "reward": random.random(ENVS, np.float32),
            "next_observation": stacking.together(after),
            "terminated": over & terminates,
            "truncated": over & ~terminates,
            "timestep": timestep,
        }
        rows.append({name: jnp.array(x) for name, x in row.items()})
        frames = np.where(over[:, None, None], draw()[:, :1], after)
        timestep = np.where(over, 0, timestep + 1).astype(np.int32)
    stacked: Any = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    nothing = ("state_descriptor", "next_state_descriptor", "extras")
    stacked |= dict.fromkeys(nothing)
    return jax.tree.map(np.array, eqrl.Transition(**stacked))


def emptied(buffer: Any, rows: Any, stacking: Stacking | None) -> Any:
    item = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), rows)
    return buffer.init(item, ENVS, stacking=stacking)


@eqx.filter_jit
def add(buffer: Any, state: Any, items: Any, counts: Any, keep: Array) -> Any:
    return buffer.add(state, items, counts, keep=keep)


sample = eqx.filter_jit(eqrl.ReplayBuffer.sample)
taken = eqx.filter_jit(transitions_at)


def written(
    buffer: Any, state: Any, rows: Any, numbers: range, kept: int | Array = 0
) -> Any:
    for number in numbers:
        items = jax.tree.map(lambda x, n=number: jnp.asarray(x[n]), rows)
        at = counts_of(number, kept)
        # A step that failed is dropped, and nothing is different.
        lost = jax.tree.map(lambda x: ~x if x.dtype == bool else x + 1, items)
        state = add(buffer, state, lost, at, jnp.array(False))
        state = add(buffer, state, items, at, jnp.array(True))
    return state


def check_holds(state: Any, counts: eqrl.Counts, rows: Any, offset: int = 0) -> Any:
    """Checks each row that is held, with `rows[offset]` as the one with number 0."""
    number = int(counts.rows_kept) + int(counts.rows_written)
    first = np.asarray(first_held(state, counts))
    for env, begin in enumerate(first):
        held = np.arange(begin, number)
        found = taken(state, jnp.full(held.shape, env), jnp.asarray(held))
        assert same(found, jax.tree.map(lambda x, at=(held + offset, env): x[at], rows))
    return number - first


@pytest.mark.parametrize("name", STACKINGS)
def test_batches_are_those_of_whole_observations(name: str) -> None:
    stacking, length = STACKINGS[name], 3 if name == "vectors" else 1
    rows = recorded(stacking, 80, length=13)
    buffer = eqrl.ReplayBuffer(ENVS * ROWS, 40, length)
    shared, whole = emptied(buffer, rows, stacking), emptied(buffer, rows, None)
    # The ring is filled in part, then full, then written a second time.
    for start, stop in ((0, 6), (6, 33), (33, 80)):
        shared = written(buffer, shared, rows, range(start, stop))
        whole = written(buffer, whole, rows, range(start, stop))
        counts = counts_of(stop)
        assert np.all(check_holds(shared, counts, rows) == min(stop, ROWS))
        batch = sample(buffer, shared, counts, key=jr.key(stop))
        assert same(batch, sample(buffer, whole, counts, key=jr.key(stop)))
    size = stacking.frame_size * (ROWS + stacking.num_frames + 1 + max(2, length))
    assert shared.frames.frames.nbytes == ENVS * size


def test_rows_whose_successor_was_overwritten_are_not_drawn() -> None:
    stacking = STACKINGS["images"]
    rows = recorded(stacking, 60, length=4)
    buffer = eqrl.ReplayBuffer(ENVS * ROWS, 400, 2)
    shared = written(buffer, emptied(buffer, rows, stacking), rows, range(60))
    held = check_holds(shared, counts_of(60), rows)
    part = written(buffer, emptied(buffer, rows, stacking), rows, range(40))
    part, _ = buffer.keep_newest(part, counts_of(40), num_rows=jnp.asarray(8, int))
    later = jax.tree.map(lambda x: x[40:], rows)
    part = written(buffer, part, later, range(20), kept=8)
    found = check_holds(part, counts_of(20, 8), rows, offset=32)
    assert list(found) == [min(number, 28) for number in held]
    # Three ends have a place: the newest three, and the rows after the one before.
    over = (rows.terminated | rows.truncated).T
    assert list(held) == [59 - np.flatnonzero(x)[-4] for x in over]
    # Rows are given back only if all environments have them.
    state, _ = REPLAY.init(DQN, ENV, key=jr.key(0))
    state = dataclasses.replace(state, replay=shared)
    stored = eqrl.stored_transitions(eqrl.Solution(state, counts_of(60), {}))
    assert len({*held}) > 1 and stored.reward.shape == (ENVS, min(held))
    expected = rows.next_observation[-min(held) :].swapaxes(0, 1)
    np.testing.assert_array_equal(stored.next_observation, expected)
    batch = sample(buffer, shared, counts_of(60), key=jr.key(0))
    drawn = np.array(batch.reward)
    for env, number in enumerate(held):
        of_env = np.isin(drawn, rows.reward[-number:, env])
        assert len(np.unique(drawn[of_env])) == number
        drawn[of_env] = -1
    assert np.all(drawn == -1)


def test_restarts_and_parts_that_are_kept_hold_the_same_rows() -> None:
    stacking = STACKINGS["images"]
    rows = recorded(stacking, 50, length=17)
    # The row before a restart ended an episode in one environment only.
    rows.terminated[40], rows.truncated[40] = False, [False, True, False]
    buffer = eqrl.ReplayBuffer(ENVS * ROWS, 8)
    shared = written(buffer, emptied(buffer, rows, stacking), rows, range(41))
    state = truncate_last_row(shared, counts_of(41))
    rows.truncated[40] = True
    check_holds(state, counts_of(41), rows)
    # The next row begins another one.
    images = [
        x[41].reshape(ENVS, -1, 4) for x in (rows.observation, rows.next_observation)
    ]
    images[0][:] = images[1][..., :3] = images[0][..., 3:]
    rows.timestep[41] = 0
    check_holds(written(buffer, state, rows, range(41, 42)), counts_of(42), rows)
    number = jnp.asarray(20, int)
    kept, counts = buffer.keep_newest(state, counts_of(41), num_rows=number)
    assert np.all(check_holds(kept, counts, rows, offset=21) == 20)
    # Of no rows there is none to truncate.
    empty = emptied(buffer, rows, stacking)
    assert same(truncate_last_row(empty, counts_of(0)), empty)
    with pytest.raises(ValueError, match="only consecutive rows"):
        buffer.keep_random(state, counts_of(41), num_rows=number, key=jr.key(0))


class Flicker(AbstractEnv[Array]):
    """Random images; it ends at random.

    A `failing` one does not, but some of its rewards are not numbers.
    """

    # An array, so that both are the same programs.
    failing: Array = eqx.field(default_factory=lambda: jnp.array(False))

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            23 * 23,
            action=eqrl.spaces.Discrete(2),
            observation_shape=(23, 23),
            observation_dtype="uint8",
            critic_observation_size=1,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[Array, Array]:
        return jnp.zeros(()), jr.bits(key, (23 * 23,), jnp.uint8)

    def step(
        self, state: Array, action: Int[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[Array, Outcome]:
        image_key, end_key = jr.split(key)
        _, image = self.reset(key=image_key)
        over = jr.bernoulli(end_key, 0.1)
        reward = jnp.where(action == 0, image[0] / 255, state)
        is_lost = self.failing & (image[1] == 0) & (image[2] < 128)
        reward = jnp.where(is_lost, jnp.nan, reward)
        over = over & ~self.failing
        return state + 0.1, Outcome(image, reward, over, jnp.array(False))

    def state_descriptor(self, state: Array) -> None:
        del state

    def critic_observation(self, state: Array) -> Array:
        return state[None]


class Whole(eqrl.AbstractReplay[Any]):
    """A custom replay around a rollout, without frames."""

    inner: eqrl.LatestRows

    def init(self, item: Any, num_envs: int) -> Any:
        return self.inner.init(item, num_envs)

    def add(self, state: Any, items: Any, counts: Any, *, keep: Any = None) -> Any:
        return self.inner.add(state, items, counts, keep=keep)

    def sample(self, state: Any, counts: Any, *, key: PRNGKeyArray) -> Any:
        return self.inner.sample(state, counts, key=key)


def whole_rollout(**sizes: Any) -> Whole:
    return Whole(eqrl.LatestRows(**sizes))


ENV = TimeLimit(FrameStack(Flicker(), 4), 16)
DQN = eqrl.DQN(make_network=eqrl.nn.ActionValues((8,)))
REPLAY = eqrl.Trainer(num_envs=2, batch_size=8, capacity=200, warmup_steps=10)
WHOLE = functools.partial(eqrl.ReplayBuffer, share_frames=False)


def train_seeds(trainer: eqrl.Trainer, *, env: Any, **options: Any) -> Any:
    options = {"num_seeds": 3, "members": "together"} | options
    return eqrl.train_seeds(DQN, env, trainer, **options)


def test_agents_of_a_replay_learn_the_same(tmp_path: Path) -> None:
    train = functools.partial(train_seeds, env=ENV, key=jr.key(0))
    whole = train(dataclasses.replace(REPLAY, make_replay=WHOLE), num_steps=40)
    half = train(REPLAY, num_steps=20)
    path = tmp_path / "half"
    eqrl.save_solution(path, half)
    half = eqrl.load_solution(path, DQN, ENV, REPLAY)
    shared = train(REPLAY, num_steps=20, initial=half)
    assert same(shared.state, whole.state)
    states = [solution.trainer_state for solution in (shared, whole)]
    bytes_of = lambda x: sum(leaf.nbytes for leaf in jax.tree.leaves(x.replay))
    assert 4 * bytes_of(states[0]) < bytes_of(states[1])
    logged: list[dict[str, float]] = []
    logger = eqrl.Logger(lambda numbers, step: logged.append(numbers))
    for step in range(2):
        logger(step, {}, shared)
    size = {"replay_transitions": 600, "replay_bytes": bytes_of(states[0])}
    assert logged == [size, {}]
    assert all(type(number) is float for number in logged[0].values())
    stored = [eqrl.stored_transitions(solution) for solution in (shared, whole)]
    num_rows = stored[0].reward.shape[-1]
    assert same(stored[0], jax.tree.map(lambda x: x[:, :, -num_rows:], stored[1]))
    check_critic_observations(stored[0])


def check_critic_observations(rows: Any) -> None:
    """Checks that they are of the states left and reached, also at an episode's end."""
    assert bool(jnp.any(rows.terminated))
    for time, seen in (
        (rows.timestep, rows.critic_observation),
        (rows.timestep + 1, rows.next_critic_observation),
    ):
        np.testing.assert_allclose(seen[..., 0], 0.1 * np.asarray(time), rtol=1e-5)


def test_agents_of_a_rollout_learn_the_same() -> None:
    agent = ppo((8,), discrete=True)
    make = functools.partial(eqrl.Trainer.on_policy, num_envs=2, num_steps=12)
    train = functools.partial(eqrl.train, agent, ENV, num_steps=72, key=jr.key(0))
    shared, whole = (
        train(trainer=make()),
        train(trainer=make(make_replay=whole_rollout)),
    )
    assert same(shared.state, whole.state)
    replay: Any = shared.trainer_state.replay
    assert replay.frames.frames.shape == (2, 12 + 4 + 12, 529)
    check_critic_observations(replay.data)


def failing(env: Any) -> Any:
    return eqx.tree_at(lambda env: env.env.env.failing, env, jnp.array(True))


def test_a_rollout_after_one_that_failed_has_the_frames_of_its_episodes() -> None:
    agent = ppo((8,), discrete=True)
    make = functools.partial(eqrl.Trainer.on_policy, num_envs=2, num_steps=12)
    states = []
    for trainer in (make(), make(make_replay=whole_rollout)):
        with pytest.raises(eqrl.NonFiniteError) as error:
            eqrl.train(agent, failing(ENV), trainer, num_steps=240, key=jr.key(3))
        found: Any = error.value.solution
        # In the middle of a rollout and of episodes.
        assert np.all(np.asarray(found.trainer_state.actors.timestep) > 0)
        again = eqrl.train(
            agent, ENV, trainer, num_steps=24, key=jr.key(1), initial=found
        )
        states.append(again.state)
    assert same(states[0], states[1])


def test_seeds_that_failed_have_the_rows_from_before() -> None:
    solutions = []
    for make_replay in (eqrl.ReplayBuffer, WHOLE):
        trainer = dataclasses.replace(REPLAY, make_replay=make_replay)
        solutions.append(
            train_seeds(trainer, env=failing(ENV), num_steps=400, key=jr.key(9))
        )
    shared, whole = solutions
    assert same(shared.state, whole.state)
    failed = np.asarray(shared.trainer_state.failed)
    assert 0 < failed.sum() < 3
    stored = eqrl.stored_transitions(shared)
    num_rows = stored.reward.shape[-1]
    replay: Any = shared.trainer_state.replay
    for index, written in enumerate(np.asarray(replay.frames.written)):
        place = (written - num_rows + np.arange(num_rows)) % 100
        rows = jax.tree.map(
            lambda x, index=index, place=place: x[index][:, place],
            whole.trainer_state.replay.data,
        )
        assert same(eqrl.member(stored, index), rows)


def test_a_replay_can_be_filled_with_whole_observations(tmp_path: Path) -> None:
    state, _ = REPLAY.init(DQN, ENV, key=jr.key(0))
    rows = recorded(STACKINGS["images"], 20, length=7)
    rows = jax.tree.map(lambda x: jnp.asarray(x[:, :2].swapaxes(0, 1)), rows)
    action = jnp.zeros(rows.reward.shape, int)
    nothing = jnp.zeros((*action.shape, 1))
    rows = dataclasses.replace(
        rows,
        action=action,
        critic_observation=nothing,
        next_critic_observation=nothing,
    )
    make = functools.partial(eqrl.ReplayBuffer, episode_returns=True)
    trainers = {
        "plain": REPLAY,
        "returns": dataclasses.replace(REPLAY, make_replay=make),
    }
    for name, trainer in trainers.items():
        replay, counts = eqrl.fill_replay(trainer.replay(1), rows)
        begun = eqx.tree_at(lambda state: state.replay, state, replay)
        initial = eqrl.Solution(trainer_state=begun, counts=counts, metrics={})
        eqrl.save_solution(tmp_path / name, initial)
        initial = eqrl.load_solution(tmp_path / name, DQN, ENV, trainer)
        solution = eqrl.train(
            DQN, ENV, trainer, num_steps=2, key=jr.key(0), initial=initial
        )
        assert same(eqrl.stored_transitions(solution).reward[:, :20], rows.reward)


def test_only_what_is_known_of_an_environment_is_shared() -> None:
    assert stacking_of(ENV) == Stacking(4, 529, 1)
    for unknown in (ActionRepeat(ENV, 2), Masked(ENV, [1])):
        assert stacking_of(unknown) == Stacking(1, 1, unknown.spec.observation_size)
    init = lambda env: eqx.filter_eval_shape(REPLAY.init, DQN, env, key=jr.key(0))
    small, _ = init(FrameStack(Flicker(), 3))
    short, _ = init(TimeLimit(ENV, 15))
    for state in (small, short):
        assert state.replay.frames is None
        assert state.replay.data.observation is not None
    # Skills keep rows that may not be neighbors.
    agent = eqrl.Intrinsic(DQN, eqrl.Incremental(descriptor="observation"))
    training = eqx.filter_eval_shape(init_training, agent, ENV, REPLAY, key=jr.key(0))
    assert training.trainer_state.replay.frames is None
