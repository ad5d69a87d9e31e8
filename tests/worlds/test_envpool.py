"""Environments of EnvPool against its pools, stepped by hand."""

import gc
import os
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest

import eqrl
from eqrl._cli import main
from eqrl._run.write import read_metrics
from eqrl.envs import AbstractEnv, ActionRepeat, FrameStack, TimeLimit, _host, make
from eqrl.envs._envpool import in_whole_games
from eqrl.envs._wrappers import stacking_of
from eqrl.spaces import Box, Discrete

from ..simulators import (
    Player,
    Repeated,
    check_rows,
    check_training,
    groups_of,
    interacted,
    seeds as seeds,
)
from ..toy import GetKey, same


pytestmark = pytest.mark.worlds

# Their time limits. Many of CartPole's episodes end at this one.
TASKS = {"CartPole-v1": 15, "Pendulum-v1": 40, "HalfCheetah-v5": 20, "Pong-v5": 12}


class ByHand:
    """A pool of one simulator, whose own limit is never reached."""

    def __init__(self, name: str, seed: int) -> None:
        import envpool  # pyright: ignore[reportMissingImports]

        self._name, self._time = name, 0
        self._pool: Any = envpool.make(
            name,
            env_type="gymnasium",
            num_envs=1,
            env_seed=[seed],
            max_episode_steps=100_000,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self._pool.observation_space  # noqa: B018

    def begin(self) -> tuple[Any, Any]:
        self._time = 0
        observation, infos = self._pool.reset()
        return self._seen(observation), self._place(infos)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        taken = np.array([2 * action if self._name == "Pendulum-v1" else action])
        observation, reward, terminated, _, infos = self._pool.step(taken)
        self._time += 1
        truncated = self._time == TASKS[self._name] and not terminated[0]
        place = self._place(infos)
        return self._seen(observation), reward[0], terminated[0], truncated, place

    def _seen(self, observation: Any) -> Any:
        if self._name == "Pong-v5":
            return observation[0].transpose(1, 2, 0).reshape(-1)
        return observation[0]

    def _place(self, infos: Any) -> Any:
        return infos["x_position"] if self._name == "HalfCheetah-v5" else None


def env_of(name: str, num_threads: int | None = None) -> AbstractEnv[Any]:
    return make(
        f"envpool/{name}",
        max_steps=TASKS[name],
        num_threads=num_threads,
        state_descriptor="x" if name == "HalfCheetah-v5" else None,
    )


@pytest.mark.parametrize(
    "name, num_steps",
    [
        ("CartPole-v1", 3334),
        ("Pendulum-v1", 3334),
        ("HalfCheetah-v5", 3334),
        ("Pong-v5", 30),
    ],
)
def test_rows_are_those_of_a_simulator_stepped_by_hand(
    name: str, num_steps: int, seeds: list[list[int]]
) -> None:
    play = lambda env: interacted(env, num_envs=3, num_steps=num_steps, key=jr.key(3))
    rows = play(env_of(name))
    assert len(set(seeds[0])) == 3
    observed = np.uint8 if name == "Pong-v5" else np.float32
    check_rows(rows, seeds[0], lambda seed: ByHand(name, seed), observed)
    at_limit = rows.timestep == TASKS[name] - 1
    assert np.any(rows.truncated & at_limit) and not np.any(rows.truncated & ~at_limit)
    if name == "CartPole-v1":
        # EnvPool itself says that those at the limit were truncated.
        assert np.any(rows.terminated & at_limit)
        assert np.any(rows.terminated & ~at_limit)
    # Whatever the number of threads.
    assert same(rows, play(env_of(name, num_threads=1)))
    assert seeds[0] == seeds[1]


def test_training_stores_the_rows_of_the_simulators_and_can_be_repeated_and_resumed(
    seeds: list[list[int]],
) -> None:
    name = "CartPole-v1"
    check_training(env_of(name), seeds, lambda seed: ByHand(name, seed))


def num_threads() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/task"))


def test_evaluations_and_environments_leave_no_thread_behind(getkey: GetKey) -> None:
    env = env_of("HalfCheetah-v5", num_threads=2)
    agent, key = Player(action=env.spec.action), getkey()
    play = lambda: eqrl.evaluate(agent, jnp.zeros(()), env, num_episodes=3, key=key)
    first = play()
    before = num_threads()
    for _ in range(20):
        assert same(play(), first)
    assert num_threads() == before
    assert not list(groups_of(env))
    state, _ = jax.vmap(lambda key: env.reset(key=key))(jr.split(getkey(), 2))
    jax.block_until_ready(state)
    assert num_threads() > before
    del env, play
    assert num_threads() <= before


def test_a_simulator_that_takes_no_step_stays_where_it_is(
    seeds: list[list[int]],
) -> None:
    env = ActionRepeat(TimeLimit(env_of("CartPole-v1"), 11), 3)
    rows = interacted(env, num_envs=2, num_steps=40, key=jr.key(5))
    by_hand = lambda seed: Repeated(ByHand("CartPole-v1", seed), 3, limit=11)
    check_rows(rows, seeds[0], by_hand)
    assert np.any(rows.terminated) and np.any(rows.truncated)


def simulators(name: str, number: int, **options: Any) -> Any:
    """Simulators of an environment, outside of any program."""
    env: Any = make(f"envpool/{name}", **options)
    made = env._make(list(range(5, 5 + number)))
    return env.spec, made, made.begin(np.arange(number))


def test_rows_are_in_the_order_that_is_asked_for() -> None:
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        _, made, _ = simulators("HalfCheetah-v5", 3, state_descriptor="x")
        rows, back = np.array(order), np.argsort(order)
        actions = np.linspace(-1, 1, 18, dtype=np.float32).reshape(3, 6)
        stepped = made.step(rows, actions[rows])
        begun = made.begin(rows)
        again = made.step(rows[:2], actions[rows[:2]]).reward
        arrays = [each for each in (*stepped, *begun) if each is not None]
        results.append([each[back] for each in arrays])
        assert again.shape == (2,)
    assert same(*results)


def lives(limit: int, num_steps: int) -> list[list[tuple[Any, ...]]]:
    """Of two simulators all ends of episodes: how, and lives and steps of the game.

    The last two are those of the beginning of the next episode.
    """
    options: dict[str, Any] = {
        "options": {"episodic_life": True},
        "state_descriptor": ("lives", "elapsed_step"),
        "max_steps": limit,
    }
    _, made, _ = simulators("Breakout-v5", 2, **options)
    rows, choices = np.arange(2), np.random.default_rng(0)
    ends: list[list[tuple[Any, ...]]] = [[], []]
    for _ in range(num_steps):
        stepped = made.step(rows, choices.integers(0, 4, 2, np.int32))
        over = stepped.terminated | stepped.truncated
        if np.any(over):
            begun = made.begin(rows[over])
            for row, place in zip(rows[over], begun.descriptor, strict=True):
                end = "life" if stepped.terminated[row] else "limit"
                ends[row].append((end, *stepped.descriptor[row], *place))
    return ends


def test_a_lost_life_ends_the_episode_and_not_the_game() -> None:
    both = lives(limit=60, num_steps=150)
    for ends in both:
        assert {end for end, *_ in ends} == {"life", "limit"}
        for end, left, steps, next_left, next_steps in ends:
            if end == "life":
                # 5 at the beginning of a game.
                assert left < 5 and (next_left, next_steps) == (left, steps)
            else:
                assert steps == 60 and (next_left, next_steps) == (5, 0)
    # A life that is lost at the limit of the game is the last.
    end, left, steps, *_ = both[0][0]
    [first, *_], _ = lives(limit=int(steps), num_steps=int(steps))
    assert first == (end, left, steps, 5, 0)


@pytest.mark.parametrize(
    "name, options",
    [
        ("Pong-v5", {}),
        ("Pong-v5", {"gray_scale": False, "stack_num": 3}),
        ("Breakout-v5", {"episodic_life": True}),
    ],
)
def test_frames_are_put_together_as_in_a_pool_but_for_lost_lives(
    name: str, options: dict[str, Any]
) -> None:
    import envpool  # pyright: ignore[reportMissingImports]

    env: Any = make(f"envpool/{name}", options=options)
    num_frames = stacking_of(env).num_frames
    assert num_frames == options.get("stack_num", 4)
    made, rows = env._make([5, 6]), np.arange(2)
    pool = envpool.make(
        name, env_type="gymnasium", num_envs=2, env_seed=[5, 6], **options
    )
    last = lambda seen: np.moveaxis(seen, 1, -1).reshape(len(seen), -1)
    np.testing.assert_array_equal(made.begin(rows).observation, last(pool.reset()[0]))
    choices, age, num_lost = np.random.default_rng(0), np.full(2, num_frames), 0
    for _ in range(150):
        actions = choices.integers(0, 4, 2, np.int32)
        seen, stepped = last(pool.step(actions)[0]), made.step(rows, actions)
        age += 1
        known = age >= num_frames
        np.testing.assert_array_equal(stepped.observation[known], seen[known])
        for row in np.flatnonzero(stepped.terminated):
            # The game goes on, and its first frame is all that the new episode sees.
            num_lost += 1
            seen = last(pool.step(np.zeros(1, int), np.array([row], np.int32))[0])
            begun = made.begin(rows[row : row + 1]).observation
            images = [x.reshape(84, 84, num_frames, -1) for x in (begun, seen)]
            assert np.all(images[0] == images[1][:, :, -1:])
            age[row] = 1
    assert (num_lost > 0) == ("episodic_life" in options)


def test_the_command_line_evaluates_in_whole_games(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqrl._cli.training.num_episodes_of", lambda *_: 2)
    folder = str(tmp_path / "x")
    train = ["train", "dqn", "--env", "envpool/Breakout-v5", "--max-steps", "60"]
    for option in ("episodic_life=True", "reward_clip=True"):
        train += ["--env-option", option]
    train += ["--hidden-sizes", "4", "--batch-size", "2", "--capacity", "8"]
    train += ["--num-steps", "16", "--warmup-steps", "8", "--evaluate-every", "16"]
    assert main([*train, "--evaluation-episodes", "2", "--folder", folder]) == 0
    assert "of whole games with rewards that are not clipped" in capsys.readouterr().out
    # In 60 steps a life is lost, but no game.
    assert read_metrics(folder)["evaluation_length"].tolist() == [60]
    assert main(["evaluate", folder, "--num-episodes", "2"]) == 0
    assert "returns of 2 episodes of whole games" in capsys.readouterr().out
    drawn: list[Any] = []
    monkeypatch.setattr(
        "eqrl._cli.finished.render", lambda *given, **_: drawn.append(given[2])
    )
    monkeypatch.setattr("eqrl._cli.finished.render_suffix", lambda _: ".gif")
    assert main(["render", folder]) == 0
    assert drawn[0]._make.options == ()
    env: Any = FrameStack(make("envpool/Breakout-v5", options={"reward_clip": True}), 2)
    whole: Any = in_whole_games(env)
    assert whole.env._make.options == () and whole.spec == env.spec
    assert in_whole_games(whole) is whole


def test_some_games_begin_where_others_go_on() -> None:
    described = {"state_descriptor": ("lives", "elapsed_step")}
    options = {"options": {"episodic_life": True}}
    _, made, _ = simulators("Breakout-v5", 2, **options, **described)
    step = lambda: made.step(np.array([1]), np.array([0]))
    stepped = step()
    while not stepped.terminated[0]:
        stepped = step()
    begun = made.begin(np.array([0, 1])).descriptor
    assert begun.tolist() == [[5, 0], *stepped.descriptor.tolist()]


def test_all_kinds_of_observations_are_vectors() -> None:
    spec, _, began = simulators("CheetahRun-v1", 2)
    both = began.observation
    assert spec.observation_size == 17 and spec.action == Box(6)
    given = {"observation": "velocity", "critic_observation": ("position",)}
    spec, _, began = simulators("CheetahRun-v1", 2, **given)
    assert (spec.observation_size, spec.critic_observation_size) == (9, 8)
    seen = np.concatenate([began.critic_observation, began.observation], axis=1)
    np.testing.assert_array_equal(seen, both)
    spec, made, began = simulators("FrozenLake-v1", 2)
    assert (spec.observation_size, spec.action) == (16, Discrete(4))
    np.testing.assert_array_equal(began.observation, np.eye(16)[[0, 0]])
    reached = made.step(np.arange(2), np.array([1, 2])).observation
    np.testing.assert_array_equal(np.sum(reached, axis=1), 1)
    spec, made, began = simulators("Pong-v5", 2)
    assert spec.observation_shape == (84, 84, 4)
    assert began.observation.shape == (2, 84 * 84 * 4)
    picture = made.picture(0)
    assert (picture.shape, picture.dtype) == ((210, 160, 3), np.uint8)


def test_descriptors_are_functions_of_the_infos_of_a_step() -> None:
    speed = lambda infos: np.array([2 * infos["x_velocity"]])
    results = []
    for describe in (speed, "x_velocity"):
        _, made, _ = simulators("HalfCheetah-v5", 2, state_descriptor=describe)
        stepped = made.step(np.array([0, 1]), np.full((2, 6), 0.5, np.float32))
        results.append(stepped.descriptor)
    assert np.all(results[0] != 0)
    np.testing.assert_allclose(results[0], 2 * results[1], rtol=1e-6)


@pytest.mark.parametrize(
    "name, rows, actions, message",
    [
        # A pool would end the process, or take it as it is.
        ("HalfCheetah-v5", [0, 1], np.zeros((1, 6)), r"\(1, 6\), but|\[1,6\]"),
        ("HalfCheetah-v5", [0, 1], np.zeros((2, 5)), r"\(2, 5\), but must .*\(2, 6\)"),
        ("CartPole-v1", [0, 1], np.zeros((2, 1), int), r"\(2, 1\), but must .*\(2,\)"),
        # It would wait for ever.
        ("CartPole-v1", [1, 1], np.zeros(2, int), "twice"),
    ],
)
def test_actions_that_do_not_fit_never_reach_a_pool(
    name: str, rows: list[int], actions: Any, message: str
) -> None:
    _, made, _ = simulators(name, 2)
    # The types of the rows are checked before, but only in tests.
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match=message):
        made.step(np.array(rows), actions)


def test_a_choice_that_does_not_exist_is_named_with_its_simulator() -> None:
    env = make("envpool/CartPole-v1")
    keys = jr.split(jr.key(0), 2)
    state, _ = jax.vmap(lambda key: env.reset(key=key))(keys)
    step = lambda state, action: env.step(state, action, key=jr.key(0))
    _, outcome = jax.vmap(step)(state, jnp.array([1, 2]))
    assert np.all(np.isnan(outcome.reward))
    failure = _host.failure_of(env)
    assert failure is not None and failure.row == 1
    assert "the action is 2; it must be from 0 to 1" in str(failure)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("HalfCheetah-v6", {}, "no environment `envpool/HalfCheetah-v6`; did you mean"),
        ("###", {}, "there are `envpool/Acrobot-v1`.* more"),
        ("HalfCheetah-v5", {"state_descriptor": "xy"}, r"\['y_position'\].*infos of"),
        ("HalfCheetah-v5", {"observation": "x"}, r"\['x'\], but .*observes `Box"),
        ("HalfCheetah-v5", {"options": {"skip": 2}}, r"no options \['skip'\].*_skip"),
        ("HalfCheetah-v5", {"options": {"frame_skip": "a"}}, "own are .*_skip': 5"),
        ("HalfCheetah-v5", {"options": {"seed": 1}}, "`seed` is not .*; give a `key`"),
        ("HalfCheetah-v5", {"options": {"max_episode_steps": 9}}, "give `max_steps`"),
        ("BinPack-v2", {}, "of whole numbers"),
        ("IntersectionMultiAgent-v0", {}, "2 players"),
        ("HalfCheetah-v5", {"backend": "mjx"}, "`backend` is not an option"),
    ],
)
def test_what_is_not_offered_is_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(f"envpool/{name}", **options)


def test_the_time_limit_is_the_tasks_own_unless_given() -> None:
    assert make("envpool/HalfCheetah-v5").spec.max_steps == 1000
    assert make("envpool/Catch-v0").spec.max_steps is None
    assert make("envpool/Catch-v0", max_steps=3).spec.max_steps == 3
    # Its limit differs between levels.
    assert make("envpool/BabyAI-GoToRedBall-v0").spec.max_steps is None


def test_the_reward_for_a_goal_falls_until_the_time_limit() -> None:
    env: Any = make("envpool/MiniGrid-Empty-5x5-v0", max_steps=5)
    simulators, rows = env._make([0]), np.array([0])
    simulators.begin(rows)
    # Two steps ahead, a turn, and two steps ahead: the goal, at the limit.
    *before, last = [simulators.step(rows, np.array([a])) for a in (2, 2, 1, 2, 2)]
    assert not any(step.terminated or step.truncated for step in before)
    np.testing.assert_allclose(last.reward, 1 - 0.9, rtol=1e-6)
    assert last.terminated and not last.truncated
    # EnvPool gives the limit of the level, and a goal at it, as a truncation.
    env = make("envpool/BabyAI-GoToRedBall-v0")
    simulators, every = env._make(range(64)), np.arange(64)
    simulators.begin(every)
    actions = np.random.default_rng(0).integers(0, 3, (64, 64))
    rewards = [simulators.step(every, action).reward for action in actions]
    length = next(i for i, reward in enumerate(rewards, 1) if np.any(reward))
    (seed, *_) = np.flatnonzero(rewards[length - 1]).tolist()
    simulators = env._make([seed])
    simulators.begin(rows)
    # It stands still before it goes the same way.
    way = [6] * (64 - length) + actions[:length, seed].tolist()
    *before, last = [simulators.step(rows, np.array([a])) for a in way]
    assert not any(step.terminated or step.truncated for step in before)
    assert last.reward > 0 and last.terminated and not last.truncated
