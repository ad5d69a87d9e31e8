"""Environments of Gymnasium against its simulators, stepped by hand."""

import dataclasses
import gc
import math
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

import eqrl
from eqrl.envs import (
    AbstractEnv,
    ActionRepeat,
    FrameStack,
    GymnasiumEnv,
    GymnasiumVectorEnv,
    TimeLimit,
)
from eqrl.envs._base import check_is_env
from eqrl.envs._interface import Interface
from eqrl.spaces import Discrete

from ..simulators import (
    Player,
    Repeated,
    Stacked,
    check_rows,
    check_training,
    groups_of,
    interacted,
    seeds as seeds,
    trained,
)
from ..toy import GetKey, same


LIMIT = 5


class Rover(gymnasium.Env[Any, Any]):
    """Drives for 3 to 7 steps, which are drawn, and is not where it should be.

    It writes into its actions. Of a step it tells where it is, of a reset it does not.
    """

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-np.inf, np.inf, (2, 1), np.float64),
            "gear": spaces.Discrete(3, start=-1),
        }
    )
    action_space = spaces.Box(np.array([-2, 0]), np.array([2, 8]), dtype=np.float32)
    # What goes wrong, and at which step of all rovers.
    fault: ClassVar[tuple[str, int] | None] = None
    num_steps: ClassVar[int] = 0
    num_open: ClassVar[int] = 0

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        Rover.num_open += 1

    def close(self) -> None:
        Rover.num_open -= 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(3, 8))
        self.place = self.np_random.normal(size=(2, 1))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        Rover.num_steps += 1
        kind, when = Rover.fault or ("", 0)
        wrong = kind if when == Rover.num_steps else ""
        if wrong == "raise":
            raise RuntimeError("the motor is on fire")
        noise = self.np_random.normal(size=(2, 1))
        self.place = self.place + self.speed * action[:, None] + noise
        action[:] = 100
        self.time += 1
        reward = float(self.place[0, 0])
        infos = {"x_position": self.place[0, 0], "y_position": self.place[1, 0]}
        # At the end it is both, as at a limit.
        over = self.time >= self.length
        seen = self._seen()
        if wrong == "nan":
            seen["place"] = math.nan * seen["place"]
        return seen, reward, over, over, infos

    def _seen(self) -> Any:
        return {"place": self.place, "gear": np.int64(self.time % 3 - 1)}


class ByHand:
    """A simulator of Gymnasium by hand."""

    def __init__(self, name: str, seed: int) -> None:
        self._seed: int | None = seed
        self._name, self._time = name, 0
        if name == "Rover":
            self._env: Any = Rover(speed=0.5)
            # Those of the library are counted.
            self._env.close()
        else:
            self._env = gymnasium.make(name).unwrapped

    def begin(self) -> tuple[Any, Any]:
        self._time = 0
        (observation, infos), self._seed = self._env.reset(seed=self._seed), None
        return self._seen(observation), self._place(infos)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        if self._name == "Rover":
            taken = np.array([2 * action[0], 4 + 4 * action[1]], np.float32)
        else:
            taken = {"Pendulum-v1": 2, "HalfCheetah-v5": 1}.get(self._name, 1) * action
        observation, reward, terminated, _, infos = self._env.step(taken)
        self._time += 1
        truncated = self._time == TASKS[self._name] and not terminated
        place = self._place(infos)
        return self._seen(observation), reward, terminated, truncated, place

    def _seen(self, observation: Any) -> Any:
        if self._name != "Rover":
            return observation
        gears = [observation["gear"] == gear for gear in (-1, 0, 1)]
        return np.array([*gears, *observation["place"][:, 0]], np.float32)

    def _place(self, infos: dict[str, Any]) -> Any:
        names = {
            "Rover": ["x_position", "y_position"],
            "HalfCheetah-v5": ["x_position"],
        }
        if self._name not in names:
            return None
        return np.array([infos.get(name, 0) for name in names[self._name]])


# Their time limits.
TASKS = {"CartPole-v1": 30, "Pendulum-v1": 40, "HalfCheetah-v5": 20, "Rover": LIMIT}


@dataclasses.dataclass(frozen=True)
class Vector:
    """Makes vectors of carts or rovers, of `more` than it is asked for."""

    name: str
    mode: AutoresetMode
    more: int = 0

    def __call__(self, num_envs: int) -> VectorEnv:
        # In mode `DISABLED` the time limit is that of the adapter.
        limit = TASKS[self.name] if self.mode is AutoresetMode.SAME_STEP else 1000
        one = lambda: Rover(speed=0.5) if self.name == "Rover" else CartPoleEnv()
        each = lambda: gymnasium.wrappers.TimeLimit(one(), limit)
        return SyncVectorEnv(
            [each] * (num_envs + self.more), copy=False, autoreset_mode=self.mode
        )


# `None` is a `GymnasiumEnv`.
ALL_MODES = (None, AutoresetMode.DISABLED, AutoresetMode.SAME_STEP)


def make(name: str, mode: AutoresetMode | None = None) -> AbstractEnv[Any]:
    if mode is not None:
        descriptor = "xy" if name == "Rover" else None
        vector, limit = Vector(name, mode), TASKS[name]
        return GymnasiumVectorEnv(
            vector,
            max_steps=limit,
            state_descriptor=descriptor,
            critic_observation="place" if name == "Rover" else None,
        )
    if name == "Rover":
        return GymnasiumEnv(
            Rover,
            max_steps=LIMIT,
            state_descriptor="xy",
            critic_observation="place",
            options={"speed": 0.5},
        )
    descriptor = "x" if name == "HalfCheetah-v5" else None
    return GymnasiumEnv(name, max_steps=TASKS[name], state_descriptor=descriptor)


def own(seeds: list[int], mode: AutoresetMode | None) -> list[int]:
    """The seed of each simulator: a vector takes one, and counts."""
    return seeds if mode is None else [seeds[0] + row for row in range(len(seeds))]


@pytest.fixture(autouse=True, scope="module")
def earlier_objects() -> None:
    """Later collections look only through what the tests of this file make."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_fault() -> None:
    gc.collect()
    Rover.fault, Rover.num_steps, Rover.num_open = None, 0, 0


@pytest.mark.parametrize(
    "name, num_steps, mode",
    [
        ("CartPole-v1", 600, None),
        ("Pendulum-v1", 300, None),
        ("HalfCheetah-v5", 60, None),
        ("Rover", 600, None),
        ("CartPole-v1", 600, AutoresetMode.DISABLED),
        ("CartPole-v1", 600, AutoresetMode.SAME_STEP),
        ("Rover", 200, AutoresetMode.DISABLED),
        ("Rover", 200, AutoresetMode.SAME_STEP),
    ],
)
def test_rows_are_those_of_a_simulator_stepped_by_hand(
    name: str, num_steps: int, mode: AutoresetMode | None, seeds: list[list[int]]
) -> None:
    env = make(name, mode)
    rows = interacted(env, num_envs=3, num_steps=num_steps, key=jr.key(3))
    assert len(set(seeds[0])) == 3
    check_rows(rows, own(seeds[0], mode), lambda seed: ByHand(name, seed))
    # Both ends are among them, and so is an end at the limit.
    at_limit = rows.timestep == TASKS[name] - 1
    assert np.any(rows.truncated & at_limit) and not np.any(rows.truncated & ~at_limit)
    if name == "Rover":
        assert np.any(rows.terminated & at_limit) and np.any(
            rows.terminated & ~at_limit
        )
        for seen, by_critics in (
            (rows.observation, rows.critic_observation),
            (rows.next_observation, rows.next_critic_observation),
        ):
            np.testing.assert_array_equal(seen[..., 3:], by_critics)


def test_training_stores_the_rows_of_the_simulators_and_can_be_repeated_and_resumed(
    seeds: list[list[int]],
) -> None:
    env = make("Rover")
    check_training(env, seeds, lambda seed: ByHand("Rover", seed))
    # Those of trainings stay for a call that resumes them, and end with `env`.
    assert Rover.num_open > 0
    del env
    gc.collect()
    assert Rover.num_open == 0


def test_training_in_a_vector_is_resumed_in_the_same_episodes(
    seeds: list[list[int]],
) -> None:
    mode = AutoresetMode.SAME_STEP
    env = make("Rover", mode)
    solution = trained(env, 80, initial=trained(env, 80))
    data = solution.trainer_state.replay.data
    by_hand = lambda seed: ByHand("Rover", seed)
    check_rows(jax.tree.map(lambda x: x[:, :80], data), own(seeds[0], mode), by_hand)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_evaluation_plays_whole_episodes_and_leaves_nothing_behind(
    mode: AutoresetMode | None, seeds: list[list[int]], getkey: GetKey
) -> None:
    env = make("Rover", mode)
    key = getkey()
    play = lambda: eqrl.evaluate(
        Player(action=env.spec.action), jnp.zeros(()), env, num_episodes=3, key=key
    )
    evaluation, again = play(), play()
    assert same(evaluation, again)
    lengths = []
    for seed in own(seeds[0], mode):
        rover = Rover()
        rover.reset(seed=seed)
        lengths.append(min(rover.length, LIMIT))
        rover.close()
    assert evaluation.lengths.tolist() == lengths
    assert not list(groups_of(env))
    assert Rover.num_open == 0


def test_a_simulator_that_takes_no_step_stays_where_it_is(
    seeds: list[list[int]],
) -> None:
    # What is over is not stepped by repeats, and what is not over is not reset.
    env = FrameStack(ActionRepeat(TimeLimit(make("Rover"), 4), 3), 2)
    rows = interacted(env, num_envs=2, num_steps=40, key=jr.key(5))
    by_hand = lambda seed: Stacked(Repeated(ByHand("Rover", seed), 3, limit=4))
    check_rows(rows, seeds[0], by_hand)
    assert np.any(rows.terminated) and np.any(rows.truncated)


@pytest.mark.parametrize("mode", ALL_MODES[1:])
def test_a_copy_that_is_left_out_of_a_step_begins_anew_and_no_other_is_changed(
    mode: AutoresetMode,
) -> None:
    env: Any = make("Rover", mode)
    vector, by_hand = env._make([7, 0]), ByHand("Rover", 7)
    first, both = np.arange(1), np.arange(2)
    action = np.full((2, 2), 0.5, np.float32)
    began = vector.begin(both)
    np.testing.assert_array_equal(began.observation[0], by_hand.begin()[0])
    vector.step(both, action)
    by_hand.step(action[0])
    # The other one ends some episodes meanwhile.
    for _ in range(20):
        stepped = vector.step(first, action[:1])
        observation, reward, terminated, truncated, place, _ = stepped
        found = observation[0], reward[0], terminated[0], truncated[0], place[0]
        for each, expected in zip(found, by_hand.step(action[0]), strict=True):
            np.testing.assert_array_equal(each, np.asarray(expected, each.dtype))
        if terminated[0] or truncated[0]:
            began = vector.begin(first)
            np.testing.assert_array_equal(began.observation[0], by_hand.begin()[0])
    with pytest.raises(ValueError, match="has to begin anew"):
        vector.step(both, action)
    if mode is AutoresetMode.SAME_STEP:
        with pytest.raises(ValueError, match="`autoreset_mode=gymnasium"):
            vector.begin(both[1:])
    else:
        gear = vector.begin(both[1:]).observation[0, :3]
        assert gear.tolist() == [1, 0, 0]
        ended = [vector.step(both, action) for _ in range(3)][-1]
        assert ended.observation[1, :3].tolist() == [1, 0, 0]
    assert vector.save(0) is None and not vector.restore(0, b"")
    vector.close()


def test_vectors_that_are_not_understood_are_refused() -> None:
    class Bare(VectorEnv):
        def __init__(self, num_envs: int) -> None:
            self.num_envs = num_envs

    disabled = AutoresetMode.DISABLED
    refused: list[tuple[Any, str]] = [
        (Vector("Rover", AutoresetMode.NEXT_STEP), r"is AutoresetMode.NEXT_STEP"),
        (Bare, r"is None.*`autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED`"),
        (Vector("Rover", disabled, more=1), r"\(num_envs=2\)`.*`num_envs=1`"),
        (lambda num_envs: Rover(), "makes `<Rover.*must make a `gymnasium.vector.Vec"),
    ]
    for given, message in refused:
        with pytest.raises(ValueError, match=message):
            GymnasiumVectorEnv(given)
    carts = lambda num_envs: gymnasium.make_vec(
        "CartPole-v1",
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": disabled},
    )
    assert GymnasiumVectorEnv(carts, max_steps=600).spec.max_steps == 500
    with pytest.raises(ValueError, match=r"Wrap it: `eqrl.envs.GymnasiumVectorEnv\("):
        check_is_env("env", Vector("Rover", disabled)(1))
    with pytest.raises(ValueError, match=r"draw a `GymnasiumVectorEnv`"):
        env = make("Rover", disabled)
        eqrl.render(Player(), None, env, "rover.gif", key=jr.key(0))


@pytest.mark.parametrize("kind, cause", [("raise", RuntimeError), ("nan", ValueError)])
def test_what_goes_wrong_in_a_simulator_ends_training_with_what_was_reached(
    kind: str, cause: type[Exception]
) -> None:
    env = make("Rover")
    # The second simulator takes each second step.
    Rover.fault = kind, 102
    with pytest.raises(eqrl.SimulatorError) as raised:
        trained(env, 160)
    error = raised.value
    assert isinstance(error.__cause__, cause)
    assert error.row == 1
    step = error.episode_step
    assert step is not None and 0 <= step < LIMIT + 1
    assert f"environment 1 failed after {step} steps of its episode" in str(error)
    reached = error.solution
    assert int(reached.counts.rows_written) > 0
    # It goes on with others.
    Rover.fault = None
    more = trained(env, 160, initial=reached)
    assert np.isfinite(more.state)


class Called(gymnasium.Env[Any, Any]):
    """Is a simulator and a function, so that it passes for one that makes them."""

    def __call__(self) -> Any:
        return self


class Odd(gymnasium.Env[Any, Any]):
    """Has the spaces that it is given."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    first: Any = None

    def __init__(self, *, render_mode: str | None = None, **given: Any) -> None:
        if render_mode is not None:
            raise ValueError(f"unknown {render_mode}")
        vars(self).update(given)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        first = self.observation_space.sample() if self.first is None else self.first
        return first, {"far": np.zeros((2, 2))}


_MOST = float(np.finfo(np.float32).max)
_IMAGE = spaces.Box(0, 255, (2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"action_space": spaces.MultiDiscrete([2, 3])}, r"`MultiDiscrete.*`Discrete`"),
        (
            {"action_space": spaces.Dict({"a": spaces.Discrete(2)})},
            r"action space `Dict",
        ),
        ({"action_space": spaces.Box(-np.inf, np.inf, (2,))}, "must be finite"),
        (
            {"action_space": spaces.Box(-_MOST, _MOST, (2,), np.float32)},
            "must be finite",
        ),
        ({"first": [7.0]}, r"returns float64 of shape \(1,\), from 7.0 to 7.0"),
        (
            {"observation_space": _IMAGE, "first": np.full((2, 2, 3), 0.9)},
            "`Odd` declares that it observes `Box.*from 0.9 to 0.9",
        ),
        (
            {
                "observation_space": spaces.Tuple([spaces.Discrete(3, start=1)]),
                "first": (0,),
            },
            r"observes `Discrete\(3, start=1\)`.* returns int64.* from 0 to 0",
        ),
        ({"action_space": spaces.Box(0, 9, (2,), np.int32)}, "of whole numbers"),
        (
            {"observation_space": spaces.Sequence(spaces.Discrete(2))},
            r"observes `Sequence.*no fixed size",
        ),
    ],
)
def test_spaces_that_are_not_offered_are_refused_by_name(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        GymnasiumEnv(Odd, options=given)


def test_names_that_a_simulator_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`observation` names \['x'\].*`Box"):
        GymnasiumEnv(Odd, observation="x")
    with pytest.raises(ValueError, match=r"`critic_observation`.*'x'.*'gear', 'place'"):
        GymnasiumEnv(Rover, critic_observation=("place", "x"))
    with pytest.raises(ValueError, match=r"`state_descriptor`.*one flat vector"):
        GymnasiumEnv(Odd, state_descriptor=lambda infos: infos["far"])
    with pytest.raises(ValueError, match="makes a dict; it must make"):
        GymnasiumEnv(dict)
    with pytest.raises(ValueError, match="Odd` has no method `render`; a"):
        eqrl.render(Player(), None, GymnasiumEnv(Odd), "odd.gif", key=jr.key(0))
    with pytest.raises(ValueError, match="one simulator already; give the class or"):
        GymnasiumEnv(Called())
    with pytest.raises(ValueError, match=r"`max_episode_steps` is not.*`max_st"):
        GymnasiumEnv("CartPole-v1", options={"max_episode_steps": 9})


def test_the_lower_one_of_two_time_limits_is_known() -> None:
    limited = lambda: gymnasium.wrappers.TimeLimit(Odd(), 4)
    for given, known in ((None, 4), (3, 3), (9, 4)):
        assert GymnasiumEnv(limited, max_steps=given).spec.max_steps == known


def test_choices_begin_at_the_start_of_their_space_and_become_one_hot() -> None:
    given = {
        "action_space": spaces.Discrete(3, start=5),
        "observation_space": spaces.Discrete(4),
    }
    spec = GymnasiumEnv(Odd, options=given).spec
    assert spec.action == Discrete(3) and spec.observation_size == 4


def test_a_batch_is_translated_as_each_of_it() -> None:
    image = spaces.Box(0, 255, (2, 3), np.uint8)
    several = spaces.MultiDiscrete([2, 3])
    parts = {"a": spaces.Discrete(3, start=2), "b": spaces.Tuple([several, image])}
    for space, keys, size in (
        (image, None, 6),
        (spaces.MultiBinary(3), None, 3),
        (spaces.Dict(parts), None, 14),
        (spaces.Dict(parts), ("b", "a"), 14),
    ):
        interface = Interface(space, spaces.Discrete(3, start=5), keys, None)
        values = [space.sample() for _ in range(4)]
        batch = concatenate(space, values, create_empty_array(space, 4))
        vectors = interface.observations(batch)
        assert vectors.shape == (4, size) and vectors.dtype == interface.dtype
        np.testing.assert_array_equal(
            vectors, [interface.observation(value) for value in values]
        )
        assert interface.action(np.array([0, 2])).tolist() == [5, 7]
    # Images beside other parts, and those of critics, are what networks see of images.
    value = {"a": 4, "b": (np.array([1, 2]), np.full((2, 3), 51, np.uint8))}
    for keys in (None, ("a", "b")):
        interface = Interface(spaces.Dict(parts), several, keys, None)
        seen = interface.observation(value)
        np.testing.assert_allclose(seen, [0, 0, 1, 0, 1, 0, 0, 1] + [0.2] * 6)
    image = spaces.Box(0, 255, (2, 4, 5), np.uint8)
    critic = Interface(spaces.Dict({"a": image}), several, None, None, ("a",)).critic
    assert critic is not None and critic.dtype == "float32"
    batch: Any = {"a": np.full((3, 2, 4, 5), 51, np.uint8)}
    np.testing.assert_allclose(critic.observations(batch), np.full((3, 40), 0.2))
    for space, keys in ((image, None), (spaces.Dict({"a": image}), ("a",))):
        interface = Interface(space, spaces.Discrete(3), keys, None)
        assert interface.spec("", {}, None).observation_shape == (4, 5, 2)
        value: Any = space.sample()
        pixels = value if keys is None else value["a"]
        vector = interface.observation(value)
        np.testing.assert_array_equal(vector.reshape(4, 5, 2)[..., 1], pixels[1])
        batch = concatenate(space, [value], create_empty_array(space, 1))
        np.testing.assert_array_equal(interface.observations(batch)[0], vector)
    # The middle plus half of the width is not exactly 0.7.
    box = spaces.Box(-0.5, 0.7, (1,))
    interface = Interface(box, box, None, ("x",))
    for value in (-1, 1):
        assert interface.action(np.full(1, value, np.float32)) in box
    assert interface.descriptor({}, begins=True).tolist() == [0]
    with pytest.raises(ValueError, match=r"names \['x'\], but the .* are \['y'\]"):
        interface.descriptor({"y": 1.0})
