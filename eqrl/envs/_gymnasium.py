"""Environments of Gymnasium, and simulators written to its interface."""

import contextlib
import dataclasses
import functools
import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit
from jaxtyping import Array, Bool, Int, Shaped

from .._pytree.fields import Count, PositiveInt, checked, shown
from .._types.data import EnvSpec
from ._base import keys_of
from ._host import AbstractHostEnv, HostState, new_owner
from ._interface import Describe, Interface, described_by, shown_names
from ._simulators import (
    AbstractSimulators,
    Began,
    MakeSimulators,
    RowError,
    Stepped,
)


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Makes the simulators of a `GymnasiumEnv`; equal ones share compilations.

    The fields are the arguments of `GymnasiumEnv`.
    """

    source: str | Callable[..., gymnasium.Env[Any, Any]]
    options: dict[str, Any]
    max_steps: int | None
    num_processes: int | None
    step_timeout: float | int | None
    keys: tuple[str, ...] | None
    describe: Describe | tuple[str, ...] | None
    critic_keys: tuple[str, ...] | None

    def __hash__(self) -> int:
        # Options may be lists and dictionaries, which are compared but have no hash.
        return hash((self.source, *self.options, self.max_steps, self.num_processes))

    def __eq__(self, other: object) -> bool:
        # Options may be arrays, which `==` compares by element.
        return isinstance(other, _Maker) and bool(
            eqx.tree_equal(vars(self), vars(other))
        )

    def one(self) -> Any:
        """Makes one simulator, whose `render` gives pictures if it can be made so."""
        source, mode = self.source, self.options.get("render_mode", "rgb_array")
        options = dict(self.options, render_mode=mode)
        if isinstance(source, gymnasium.Env):
            raise ValueError(
                f"`source={shown(source)}` is one simulator already; give the class or "
                "a function that makes one: more than one is needed."
            )
        if isinstance(source, str):
            source = functools.partial(
                gymnasium.make,
                source,
                max_episode_steps=self.max_steps,
                disable_env_checker=True,
            )
        else:
            # Classes written in C have no signature.
            with contextlib.suppress(ValueError):
                if "render_mode" not in inspect.signature(source).parameters:
                    options = self.options
        with warnings.catch_warnings():
            if "render_mode" not in self.options:
                warnings.filterwarnings("ignore", ".* not in the possible render_modes")
            try:
                env = source(**options)
            except (TypeError, AssertionError, ValueError):
                if options is self.options or "render_mode" in self.options:
                    raise
                # Its constructor may take no `render_mode`, or not this one.
                env = source(**self.options)
        if not isinstance(env, gymnasium.Env):
            raise ValueError(
                f"`source={shown(self.source)}` makes a {type(env).__name__}; it "
                "must make a `gymnasium.Env`, a class that derives from it. Vector "
                "environments go into `eqrl.envs.GymnasiumVectorEnv`."
            )
        if self.max_steps is None or isinstance(self.source, str):
            return env
        return TimeLimit(env, self.max_steps)

    def interface(self, env: Any) -> Interface:
        """The interface of a simulator that this has made."""
        observed, acted = env.observation_space, env.action_space
        return Interface(observed, acted, self.keys, self.describe, self.critic_keys)

    def __call__(self, seeds: Sequence[int]) -> AbstractSimulators:
        if self.num_processes is None:
            return _InTurn(self, seeds)
        return _InProcesses(self, seeds)


class _InTurn(AbstractSimulators):
    """Simulators in this process, one after another."""

    def __init__(self, maker: _Maker, seeds: Sequence[int]) -> None:
        self._maker = maker
        self._envs: list[Any] = []
        try:
            self._envs += (maker.one() for _ in seeds)
            inner = [env.unwrapped for env in self._envs]
            if len({*map(id, inner)}) < len(seeds):
                raise ValueError(
                    f"`source={shown(maker.source)}` returns one simulator twice; let "
                    "it make a new one at each call."
                )
        except BaseException:
            self.close()
            raise
        self._interface = maker.interface(self._envs[0])
        # Only the first episode is seeded; later ones continue its random numbers.
        self._seeds: list[int | None] = list(seeds)

    def begin(self, rows: Int[np.ndarray, " rows"]) -> Began:
        observations, descriptors, critic_observations = [], [], []
        critic = self._interface.critic
        for row in rows:
            try:
                seed, self._seeds[row] = self._seeds[row], None
                observation, infos = self._envs[row].reset(seed=seed)
                observations.append(self._interface.observation(observation))
                if self._interface.describe is not None:
                    descriptors.append(self._interface.descriptor(infos, begins=True))
                if critic is not None:
                    critic_observations.append(critic.observation(observation))
            except Exception as error:
                raise RowError(int(row)) from error
        return Began(
            np.stack(observations), _stack(descriptors), _stack(critic_observations)
        )

    def step(
        self, rows: Int[np.ndarray, " rows"], actions: Shaped[np.ndarray, "rows ..."]
    ) -> Stepped:
        steps: list[tuple[Any, ...]] = []
        descriptors, critic_observations = [], []
        critic = self._interface.critic
        for row, action in zip(rows, actions, strict=True):
            try:
                observation, reward, terminated, truncated, infos = self._envs[
                    row
                ].step(self._interface.action(action))
                if critic is not None:
                    critic_observations.append(critic.observation(observation))
                observation = self._interface.observation(observation)
                flags = bool(terminated), bool(truncated)
                steps.append((observation, float(reward), *flags))
                if self._interface.describe is not None:
                    descriptors.append(self._interface.descriptor(infos))
            except Exception as error:
                raise RowError(int(row)) from error
        observations, rewards, *ends = zip(*steps, strict=True)
        terminated, truncated = map(np.array, ends)
        return Stepped(
            observation=np.stack(observations),
            reward=np.array(rewards),
            terminated=terminated,
            # At the limit both may be true.
            truncated=truncated & ~terminated,
            descriptor=_stack(descriptors),
            critic_observation=_stack(critic_observations),
        )

    def picture(self, row: int) -> np.ndarray:
        return np.asarray(self._envs[row].render())

    def save(self, row: int) -> bytes | None:
        if not _is_saved_exactly(self._maker):
            return None
        return _saved(self._envs[row], self._maker)

    def restore(self, row: int, saved: bytes) -> bool:
        return _restore(self._envs[row], self._maker, saved)

    def close(self) -> None:
        for env in self._envs:
            # One that cannot be closed must not keep the others open.
            with contextlib.suppress(Exception):
                env.close()


def _layers(env: Any) -> list[Any]:
    """An environment and those inside, from the outermost."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


# Attributes that do not change from step to step, and cannot be saved or take long,
# unless they are numbers.
_FIXED = (
    "env",
    "model",
    "mujoco_renderer",
    "spec",
    "screen",
    "clock",
    "surf",
    "isopen",
)


def _made_by(env: object, maker: _Maker) -> list[object]:
    """The settings of a simulator, on which its attributes depend."""
    layers, source = _layers(env), maker.source
    kinds = [type(layer).__qualname__ for layer in layers]
    limits = [x._max_episode_steps for x in layers if isinstance(x, TimeLimit)]
    options: dict[str, object] = dict(maker.options)
    if isinstance(source, functools.partial):
        options = source.keywords | options
    compared: dict[str, bytes] = {}
    for option, value in options.items():
        # Options that cannot be pickled are not compared.
        with contextlib.suppress(Exception):
            compared[option] = pickle.dumps(value)
    return [source if isinstance(source, str) else None, kinds, limits, compared]


def _saved(env: gymnasium.Env[Any, Any], maker: _Maker) -> bytes | None:
    """The attributes of a simulator and of its wrappers; `None` if one cannot be saved.

    For MuJoCo, all data: its state vector leaves out what Ant and Humanoid observe.
    """
    layers = [
        {
            name: value
            for name, value in vars(layer).items()
            if (name not in _FIXED or isinstance(value, int | float | np.ndarray))
            and not name.endswith("space")
        }
        for layer in _layers(env)
    ]
    try:
        return zlib.compress(pickle.dumps((_made_by(env, maker), layers)), level=1)
    except Exception:
        # The error of an attribute that cannot be pickled depends on the attribute.
        return None


def _restore(env: gymnasium.Env[Any, Any], maker: _Maker, saved: bytes) -> bool:
    """Whether the simulator was made as the one that was saved, whose state it takes.

    Attributes hold options and time limits, too, which are not to be undone.
    """
    made_by, layers = pickle.loads(zlib.decompress(saved))
    if made_by != _made_by(env, maker):
        return False
    for layer, values in zip(_layers(env), layers, strict=True):
        if type(values.get("data")).__module__.startswith("mujoco"):
            import mujoco

            # The renderer would not follow a new object.
            copy = mujoco.mj_copyData  # pyright: ignore[reportAttributeAccessIssue]
            copy(layer.data, layer.model, values.pop("data"))
        vars(layer).update(values)
    return True


@functools.cache
def _is_saved_exactly(maker: _Maker) -> bool:
    """Whether a restored simulator takes exactly the steps that it would have taken.

    It is tried out with another one, since a simulator may keep a part of its state
    elsewhere.
    """
    with contextlib.ExitStack() as stack:
        # It may refuse what no agent does, such as a reset in mid-episode.
        stack.enter_context(contextlib.suppress(Exception))
        env, other = (
            stack.enter_context(contextlib.closing(maker.one())) for _ in range(2)
        )
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(12)]

        def play(env: Any) -> bytes:
            seen: list[Any] = []
            for index, action in enumerate(actions):
                *step, _ = env.step(action)
                seen.append(step)
                # Random numbers at the beginning of an episode count, too.
                if step[2] or step[3] or index == 6:
                    seen.append(env.reset()[0])
            return pickle.dumps(seen)

        env.reset(seed=0)
        other.reset(seed=1)
        env.step(actions[0])
        saved = _saved(env, maker)
        if saved is None or not _restore(other, maker, saved):
            return False
        return play(env) == play(other)
    return False


_Reply = tuple[bool, Any]


def _work(connection: Any, maker: _Maker, seeds: Sequence[int]) -> None:
    """Runs some simulators in a separate process, until its connection is closed.

    Each message is the name of a method and its arguments.
    """
    simulators: _InTurn | None = None
    # A terminal or a cluster signals a whole group of processes; whether to end is for
    # the other one, whose end closes the connection.
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The other process closes its end at any time.
    with contextlib.suppress(EOFError, OSError):
        while True:
            name, arguments = connection.recv()
            try:
                simulators = simulators or _InTurn(maker, seeds)
                reply: _Reply = (True, getattr(simulators, name)(*arguments))
            except RowError as error:
                reply = (False, (error.row, error.__cause__))
            except Exception as error:
                reply = (False, (None, error))
            if not reply[0]:
                row, error = reply[1]
                try:
                    pickle.loads(pickle.dumps(error))
                except Exception:
                    # The error of an exception that cannot be sent depends on it.
                    reply = (False, (row, RuntimeError(repr(error))))
            try:
                connection.send(reply)
            except (pickle.PicklingError, TypeError, AttributeError):
                connection.send((False, (None, RuntimeError(repr(reply[1])))))
    if simulators is not None:
        simulators.close()


class _InProcesses(AbstractSimulators):
    """Simulators that are divided among several processes."""

    def __init__(self, maker: _Maker, seeds: Sequence[int]) -> None:
        assert maker.num_processes is not None
        self._timeout = maker.step_timeout
        # After JAX has started threads, a fork could hang.
        context = multiprocessing.get_context("spawn")
        shares = np.array_split(np.arange(len(seeds)), maker.num_processes)
        self._shares = [share for share in shares if len(share) > 0]
        self._workers: list[tuple[Any, Any]] = []
        for share in self._shares:
            connection, other = context.Pipe()
            own = [seeds[row] for row in share]
            process = context.Process(
                target=_work, args=(other, maker, own), daemon=True
            )
            try:
                process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"`source={shown(maker.source)}`, one of its `options` or "
                    "`state_descriptor` cannot be sent to another process; give a "
                    "function or class of a module, not one that is made within a "
                    f"function, or `num_processes=None`: {error}"
                ) from error
            # Otherwise the end of the process would not be noticed here.
            other.close()
            self._workers.append((process, connection))

    def begin(self, rows: Int[np.ndarray, " rows"]) -> Began:
        return Began(*self._gather("begin", rows))

    def step(
        self, rows: Int[np.ndarray, " rows"], actions: Shaped[np.ndarray, "rows ..."]
    ) -> Stepped:
        return Stepped(*self._gather("step", rows, actions))

    def picture(self, row: int) -> np.ndarray:
        return self._ask_one("picture", row)

    def save(self, row: int) -> bytes | None:
        return self._ask_one("save", row)

    def restore(self, row: int, saved: bytes) -> bool:
        return self._ask_one("restore", row, saved)

    def close(self) -> None:
        for process, connection in self._workers:
            connection.close()
            # Time for its simulators to close.
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._workers = []

    def _gather(
        self, name: str, rows: Int[np.ndarray, " rows"], *given: np.ndarray
    ) -> list[Any]:
        """The results of all processes, in the order of the rows."""
        asked = []
        for worker, share in enumerate(self._shares):
            places = np.flatnonzero(np.isin(rows, share))
            if len(places) > 0:
                own = rows[places] - share[0]
                self._send(worker, name, own, *(each[places] for each in given))
                asked.append((worker, places))
        order = np.argsort(np.concatenate([places for _, places in asked]))
        # The first `begin` makes the simulators, which takes a while.
        timeout = self._timeout if name == "step" else None
        results = [self._receive(worker, timeout) for worker, _ in asked]
        return [
            None if parts[0] is None else np.concatenate(parts)[order]
            for parts in zip(*results, strict=True)
        ]

    def _ask_one(self, name: str, row: int, *given: Any) -> Any:
        [worker] = [i for i, share in enumerate(self._shares) if row in share]
        self._send(worker, name, row - self._shares[worker][0], *given)
        return self._receive(worker)

    def _send(self, worker: int, name: str, *arguments: Any) -> None:
        # A process that has died is noticed when it should reply.
        with contextlib.suppress(OSError):
            self._workers[worker][1].send((name, arguments))

    def _receive(self, worker: int, timeout: float | int | None = None) -> Any:
        process, connection = self._workers[worker]
        share = self._shares[worker]
        rows = f"environments {share[0]} to {share[-1]}"
        if timeout is not None and not connection.poll(timeout):
            raise TimeoutError(
                f"the process of {rows} did not answer within "
                f"`step_timeout={timeout}` seconds"
            )
        try:
            succeeded, result = connection.recv()
        except (EOFError, OSError):
            process.join(timeout=1)
            raise RuntimeError(
                f"the process of {rows} ended with exit code {process.exitcode}"
            ) from None
        if succeeded:
            return result
        row, error = result
        if row is None:
            raise error
        raise RowError(int(share[0]) + row) from error


def _stack(
    rows: list[Shaped[np.ndarray, " size"]],
) -> Shaped[np.ndarray, "rows size"] | None:
    return np.stack(rows) if rows else None


class GymnasiumEnv(AbstractHostEnv):
    """An environment of Gymnasium, or any simulator with its interface.

    Its simulators run in this process, one after another, or in separate processes.
    They are stepped by the compiled program and are only reset when an episode is over,
    so no transition is lost or invented. An episode that terminates at its time limit
    is terminated.

    Actions in [-1, 1] are rescaled to the bounds of a `Box`; choices of a `Discrete`
    begin at its `start`. Observations become flat vectors: images of `uint8`, and all
    others of floats, choices one-hot and the parts of a dictionary one after another.
    Images beside other parts, and those of `critic_observation`, are divided by 255.

    A simulator only has its current state. Training that is resumed where it ended
    continues the same episodes, and so does one from a solution of `save_solution`, if
    the simulator can be saved exactly. Otherwise new episodes begin.
    """

    _make: MakeSimulators = eqx.field(static=True)
    _spec: EnvSpec = eqx.field(static=True)
    _owner: Int[Array, ""] = eqx.field(repr=False)
    _active: Bool[Array, ""] | None
    _begun: tuple[Bool[Array, ""], HostState] | None

    @checked
    def __init__(
        self,
        source: str | Callable[..., Any],
        *,
        max_steps: Count | None = None,
        num_processes: PositiveInt | None = None,
        step_timeout: float | int | None = None,
        state_descriptor: str | tuple[str, ...] | Describe | None = None,
        observation: str | tuple[str, ...] | None = None,
        critic_observation: str | tuple[str, ...] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """**Arguments:**

        - `source`: a name that Gymnasium knows, such as `"HalfCheetah-v5"`; or a class
            or function that makes a `gymnasium.Env`, with the argument
            `render_mode="rgb_array"` if it has one. Only the same one shares
            compilations. Settings belong in `options`: a solution that is loaded for
            another source continues the simulators that were saved unless their name,
            classes, time limits or options differ.
        - `max_steps`: the time limit, at least 1; by default the environment's own.
        - `num_processes`: how many processes run the simulators; `None` runs them in
            this one, which is faster unless a step takes milliseconds. A function that
            makes them must then be defined in a module, not within a function.
        - `step_timeout`: seconds after which a process that does not answer a step is
            an error; `None` waits. It needs `num_processes`.
        - `state_descriptor`: what describes the behavior: `"x"` or `"xy"` for the
            position that MuJoCo's walkers report; names of other infos; or a function
            of the infos of a step or of a reset, which may lack some, to finite values.
            `None` for no descriptor. A named info that is missing at a reset counts as
            0, so it must then be one number.
        - `observation`: in observations that are dictionaries, the key or keys to see;
            `None` takes all.
        - `critic_observation`: likewise, the keys that critics see instead, as floats;
            `None` for the same ones.
        - `options`: further arguments for making the environment, by name.

        Raises a `ValueError` if its spaces have no fixed size or no finite bounds of
        actions, or if the first observation is not of the declared space.
        """
        if step_timeout is not None and num_processes is None:
            raise ValueError(
                f"`step_timeout={step_timeout}` needs `num_processes`: a step of a "
                "simulator in this process cannot be ended."
            )
        if isinstance(source, str) and "max_episode_steps" in (options or {}):
            raise ValueError(
                "`max_episode_steps` is not one of `options`; give `max_steps`."
            )
        maker = _Maker(
            source=source,
            options=dict(options or {}),
            max_steps=max_steps,
            num_processes=num_processes,
            step_timeout=step_timeout,
            keys=keys_of(observation),
            describe=described_by(state_descriptor),
            critic_keys=keys_of(critic_observation),
        )
        self._make = maker
        try:
            env = maker.one()
        except TypeError as error:
            if not maker.options:
                raise
            raise ValueError(
                f"`options={maker.options}` of `{shown(source)}`: {error}."
            ) from error
        try:
            # The class or function may have its own limit within that of `max_steps`.
            limits = [x for x in _layers(env) if isinstance(x, TimeLimit)]
            limit = min((x._max_episode_steps for x in limits), default=None)
            observation, infos = env.reset(seed=0)
            interface = maker.interface(env)
            self._spec = interface.spec(name_of(self), infos, limit)
            interface.check(name_of(self), observation)
        finally:
            env.close()
        self._owner = new_owner()
        self._active = None
        self._begun = None

    @property
    def spec(self) -> EnvSpec:
        return self._spec


def picture_suffix(env: GymnasiumEnv) -> str:
    """The suffix of the file made from a simulator's images, if it can draw."""
    maker = env._make
    assert isinstance(maker, _Maker)
    one: Any = maker.one()
    try:
        is_mujoco = getattr(one.unwrapped, "mujoco_renderer", None) is not None
        if type(one.unwrapped).render is gymnasium.Env.render:
            what = "a picture needs one that gives an image as an array"
            raise ValueError(f"`{name_of(env)}` has no method `render`; {what}.")
    finally:
        one.close()
    if is_mujoco:
        check_opengl()
    return ".gif"


@functools.cache
def check_opengl() -> None:
    """Checks that MuJoCo can draw, in another process, which may crash in the attempt.

    Raises a `ValueError` that names the setting to change.
    """
    code = (
        "import gymnasium\n"
        'env = gymnasium.make("InvertedPendulum-v5", render_mode="rgb_array")\n'
        "env.reset()\n"
        "env.render()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    if ran.returncode == 0:
        return
    said = ran.stderr.strip().splitlines() or [f"it ended with {ran.returncode}"]
    raise ValueError(
        f"MuJoCo cannot draw here: {said[-1]}. It needs OpenGL: without a screen, set "
        "`MUJOCO_GL=egl` or `MUJOCO_GL=osmesa`, if installed, before Python starts."
    )


def name_of(env: GymnasiumEnv) -> str:
    maker = env._make
    assert isinstance(maker, _Maker)
    if isinstance(maker.source, str):
        return f"gymnasium/{maker.source}"
    return getattr(maker.source, "__name__", type(maker.source).__name__)


def descriptor_names(env: GymnasiumEnv) -> tuple[str, ...] | None:
    maker = env._make
    assert isinstance(maker, _Maker)
    return shown_names(maker.describe)


def names() -> list[str]:
    return sorted(gymnasium.registry)


def make(name: str, *, max_steps: int | None = None, **options: Any) -> GymnasiumEnv:
    return GymnasiumEnv(name, max_steps=max_steps, **options)
