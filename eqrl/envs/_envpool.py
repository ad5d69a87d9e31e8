"""Environments of EnvPool, which steps many simulators in C++ threads."""

import dataclasses
import functools
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt8

from .._pytree.fields import Count, PositiveInt, checked
from .._types.data import EnvSpec, Stacking
from .._types.installed import check_installed
from ._base import AnyEnv, innermost, keys_of, sorted_options
from ._host import AbstractHostEnv, HostState, new_owner
from ._interface import (
    Describe,
    Interface,
    described_by,
    is_channels_first,
    shown_names,
)
from ._make import check_known
from ._simulators import (
    AbstractSimulators,
    Began,
    MakeSimulators,
    RowError,
    Stepped,
)


# The limit that EnvPool reports for tasks without one.
_NO_LIMIT = np.iinfo(np.int32).max

# Options of EnvPool that belong to the adapter.
_OWN_OPTIONS = {
    "max_episode_steps": "`max_steps`",
    "num_threads": "`num_threads` outside of `options`",
    "num_envs": "the `num_envs` of what plays",
    "seed": "a `key`",
    "env_seed": "a `key`",
    "batch_size": None,
    "max_num_players": None,
    "gym_reset_return_info": None,
}


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Makes the simulators of an `EnvPoolEnv`; equal ones share compilations.

    `limit` is the time limit, `stacking` how observations are stacked from frames of
    the pool, if they are, and the other fields are arguments of `EnvPoolEnv`.
    """

    task_id: str
    options: tuple[tuple[str, Any], ...]
    limit: int | None
    num_threads: int | None
    keys: tuple[str, ...] | None
    describe: Describe | tuple[str, ...] | None
    critic_keys: tuple[str, ...] | None
    stacking: Stacking | None = None

    @property
    def rewards_know_limit(self) -> bool:
        """Whether the reward for a goal falls from 1 to 0.1 at the time limit."""
        return self.task_id.startswith(("MiniGrid-", "BabyAI-"))

    def pool(self, seeds: Sequence[int]) -> Any:
        """EnvPool's own pool, with a simulator for each seed."""
        import envpool  # pyright: ignore[reportMissingImports]

        options = dict(self.options)
        if self.stacking is not None:
            # Frames are stacked here, so that a replay can store each of them once.
            options["stack_num"] = 1
        if self.limit is not None:
            # EnvPool reports termination at its limit as truncation, so its limit must
            # be one that is never reached.
            options["max_episode_steps"] = self.limit + 1
        if self.num_threads is not None:
            options["num_threads"] = self.num_threads
        pool = envpool.make(
            self.task_id,
            env_type="gymnasium",
            num_envs=len(seeds),
            env_seed=list(seeds),
            render_mode="rgb_array",
            **options,
        )
        with warnings.catch_warnings():
            # Its spaces, which are made here, are cast to less precise types.
            warnings.simplefilter("ignore")
            _ = pool.observation_space, pool.action_space
        return pool

    def interface(self, pool: Any) -> Interface:
        """The interface of one of a pool's simulators."""
        observed, acted = pool.observation_space, pool.action_space
        return Interface(observed, acted, self.keys, self.describe, self.critic_keys)

    def checked_pool(self) -> Any:
        """A pool of one simulator, after checks of the options."""
        import envpool  # pyright: ignore[reportMissingImports]

        options = dict(self.options)
        for name, instead in _OWN_OPTIONS.items():
            if name in options:
                advice = f"give {instead}" if instead else "leave it out"
                raise ValueError(f"`{name}` is not one of `options`; {advice}.")
        try:
            hash(self)
            pool = self.pool([0])
        except TypeError as error:
            known = envpool.make_spec(self.task_id).config._asdict()
            unknown = sorted(set(options) - set(known))
            taken = {name: known[name] for name in known if name not in _OWN_OPTIONS}
            raise ValueError(
                f"`{self.task_id}` has no options {unknown}; it has {list(taken)}."
                if unknown
                else f"`{self.task_id}` does not take `options={options}`; EnvPool's "
                f"own are { {name: known[name] for name in options} }."
            ) from error
        players = pool.config["max_num_players"]
        if players > 1:
            raise ValueError(
                f"`{self.task_id}` has {players} players, but eqrl trains one agent."
            )
        return pool

    def checked_interface(self, pool: Any, infos: Mapping[str, Any]) -> Interface:
        """The interface of a pool, after checks of the names of observed parts."""
        if isinstance(self.describe, tuple):
            given = sorted(_infos_of(infos, 0))
            wrong = [name for name in self.describe if name not in given]
            if wrong:
                raise ValueError(
                    f"`state_descriptor` names {wrong}, but the infos of "
                    f"`{self.task_id}` are {given}."
                )
        return self.interface(pool)

    def __call__(self, seeds: Sequence[int]) -> AbstractSimulators:
        return _Pool(self, seeds)


class _Pool(AbstractSimulators):
    """The simulators of a pool.

    A pool begins a new episode when it is asked to step a simulator whose episode is
    over. No agent takes that step, so simulators that are over are reset by number, and
    only the others are stepped.
    """

    def __init__(self, maker: _Maker, seeds: Sequence[int]) -> None:
        self._maker = maker
        self._pool: Any = maker.pool(seeds)
        self._interface = maker.interface(self._pool)
        self._has_lives = bool(dict(maker.options).get("episodic_life"))
        self._frames: UInt8[np.ndarray, "envs frames frame"] | None = None
        if maker.stacking is not None:
            num_frames, size = maker.stacking.num_frames, maker.stacking.frame_size
            self._frames = np.zeros((len(seeds), num_frames, size), np.uint8)
        # Simulators whose game continues, since only a life was lost.
        self._goes_on = np.zeros(len(seeds), bool)

    def begin(self, rows: Int[np.ndarray, " rows"]) -> Began:
        self._check_rows(rows)
        goes_on = self._goes_on[rows]
        self._goes_on[rows] = False
        seen = []
        if np.any(goes_on):
            # A reset would end the game. The first step after a lost life takes no
            # action: it only begins the next life.
            living = rows[goes_on]
            shape = self._interface.acted.shape or ()
            no_action = np.zeros((len(living), *shape), int)
            observation, *_, infos = self._pool.step(no_action, _ids(living))
            seen.append(self._seen(living, observation, infos))
        if not np.all(goes_on):
            over = rows[~goes_on]
            seen.append(self._seen(over, *self._pool.reset(_ids(over))))
        # Simulators whose game continues come first.
        order = np.argsort(np.argsort(~goes_on, kind="stable"))
        observations, *others = zip(*seen, strict=True)
        observation = np.concatenate(observations)[order]
        described = (
            None if parts[0] is None else np.concatenate(parts)[order]
            for parts in others
        )
        if self._frames is not None:
            self._frames[rows] = observation[:, None]
        return Began(self._stacked(rows, observation), *described)

    def step(
        self, rows: Int[np.ndarray, " rows"], actions: Shaped[np.ndarray, "rows ..."]
    ) -> Stepped:
        self._check_rows(rows)
        observation, reward, terminated, truncated, infos = self._pool.step(
            self._acted(rows, actions), _ids(rows)
        )
        observation, descriptor, seen = self._seen(rows, observation, infos)
        limit = _NO_LIMIT if self._maker.limit is None else self._maker.limit
        late = infos["elapsed_step"] >= limit
        if self._maker.rewards_know_limit and self._maker.limit is None:
            # Whatever is rewarded ends the episode, at the limit of its level, too.
            terminated = terminated | (truncated & (reward != 0))
        elif self._maker.rewards_know_limit:
            # The pool's limit is one step later.
            share = np.float32((limit + 1) / limit)
            reward = np.where(reward > 0, 1 - (1 - reward) * share, reward)
        if self._has_lives:
            self._goes_on[rows] = terminated & ~late
        if self._frames is not None:
            self._frames[rows, :-1] = self._frames[rows, 1:]
            self._frames[rows, -1] = observation
        return Stepped(
            observation=self._stacked(rows, observation),
            reward=reward,
            terminated=terminated,
            truncated=(truncated | late) & ~terminated,
            descriptor=descriptor,
            critic_observation=seen,
        )

    def _stacked(
        self,
        rows: Int[np.ndarray, " rows"],
        observation: Shaped[np.ndarray, "rows frame"],
    ) -> Shaped[np.ndarray, "rows obs"]:
        stacking = self._maker.stacking
        if stacking is None or self._frames is None:
            return observation
        return stacking.together(self._frames[rows])

    def _check_rows(self, rows: Int[np.ndarray, " rows"]) -> None:
        """Checks that no row occurs twice, since a pool would wait for it forever."""
        if len(set(rows.tolist())) < len(rows):
            raise ValueError("a simulator was stepped twice at the same time")

    def _acted(
        self, rows: Int[np.ndarray, " rows"], actions: Shaped[np.ndarray, "rows ..."]
    ) -> Shaped[np.ndarray, "rows ..."]:
        """The agent's actions as the pool takes them.

        A pool ends the process if rows are missing, and accepts unknown actions.
        """
        acted = self._interface.acted
        shape = (len(rows),)
        if isinstance(acted, spaces.Box):
            shape = (len(rows), acted.low.size)
        if actions.shape != shape:
            raise ValueError(
                f"actions have the shape {actions.shape}, but must have {shape}"
            )
        if isinstance(acted, spaces.Discrete):
            wrong = (actions < 0) | (actions >= acted.n)
            if np.any(wrong):
                row = int(np.argmax(wrong))
                error = ValueError(
                    f"the action is {actions[row]}; it must be from 0 to {acted.n - 1}"
                )
                raise RowError(int(rows[row])) from error
            return actions + int(acted.start)
        return self._interface.action(actions)

    def _seen(
        self, rows: Int[np.ndarray, " rows"], observation: Any, infos: Mapping[str, Any]
    ) -> tuple[
        Shaped[np.ndarray, "rows obs"],
        Float[np.ndarray, "rows descriptor"] | None,
        Shaped[np.ndarray, "rows critic_obs"] | None,
    ]:
        """Observations, descriptors and critic observations, by row."""
        # Results for some of the simulators are in the requested order, too.
        assert infos["env_id"].tolist() == rows.tolist()
        interface = self._interface
        vectors, critic = interface.observations(observation), interface.critic
        seen = None if critic is None else critic.observations(observation)
        describe = interface.describe
        if describe is None:
            return vectors, None, seen
        if isinstance(describe, tuple):
            named = [
                np.asarray(infos[name], np.float32).reshape(len(rows), -1)
                for name in describe
            ]
            return vectors, np.concatenate(named, axis=1), seen
        descriptors = [
            interface.descriptor(_infos_of(infos, place)) for place in range(len(rows))
        ]
        return vectors, np.stack(descriptors), seen

    def picture(self, row: int) -> np.ndarray:
        _check_draws(self._maker.task_id)
        return np.asarray(self._pool.render(env_ids=row)[0])

    def save(self, row: int) -> bytes | None:
        return None

    def restore(self, row: int, saved: bytes) -> bool:
        return False

    def close(self) -> None:
        # EnvPool's `close` leaves its threads, which end when the pool is collected.
        self._pool = None


def _ids(rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    return rows.astype(np.int32)


def _infos_of(infos: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The infos of one simulator."""
    return {
        name: values[place]
        for name, values in infos.items()
        if isinstance(values, np.ndarray)
    }


@functools.cache
def _check_draws(task_id: str) -> None:
    """Checks in a separate process that a task can be drawn.

    MuJoCo's tasks end the process if OpenGL is missing.
    """
    code = (
        "import sys, envpool\n"
        "pool = envpool.make(sys.argv[1], 'gymnasium', render_mode='rgb_array')\n"
        "pool.reset()\n"
        "pool.render()"
    )
    tried = subprocess.run(
        [sys.executable, "-c", code, task_id],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        said = (tried.stdout + tried.stderr).strip()
        raise ValueError(
            f"EnvPool cannot draw `{task_id}` here; for MuJoCo it needs OpenGL, such "
            "as that of the system's package `libegl1`. "
            f"It said: {said[-300:]}"
        )


class EnvPoolEnv(AbstractHostEnv):
    """An environment of EnvPool, whose simulators are stepped in C++ threads.

    They are stepped by the compiled program and are only reset when an episode is over,
    so no transition is lost or invented. An episode that terminates at its time limit
    is terminated, although EnvPool itself reports it as truncated. Tasks of Jumanji are
    an exception: they treat their own limit, `max_steps` by default, as a termination,
    and any lower one is a time limit.

    Actions in [-1, 1] are rescaled to the bounds of a `Box`. Observations become flat
    vectors: images of `uint8`, channels last, and all others of floats, choices one-hot
    and the parts of a dictionary one after another.

    With `options={"episodic_life": True}`, a lost life terminates the episode, and the
    next one continues the same game. The time limit is that of the game.

    Images of Atari and ViZDoom hold the latest `stack_num` frames, an option of
    EnvPool. The adapter stacks them as `FrameStack` does: at the beginning of an
    episode the first frame takes the place of earlier ones, even after a lost life,
    where EnvPool itself would show the frames from before it.

    A simulator only has its current state, which cannot be saved. Training that is
    resumed where it ended continues the same episodes; if it is resumed from an earlier
    state, or in another process, it begins new ones. A process that was forked from one
    with pools cannot step them.
    """

    _make: MakeSimulators = eqx.field(static=True)
    _spec: EnvSpec = eqx.field(static=True)
    _owner: Int[Array, ""] = eqx.field(repr=False)
    _active: Bool[Array, ""] | None
    _begun: tuple[Bool[Array, ""], HostState] | None

    @checked
    def __init__(
        self,
        task_id: str,
        *,
        num_threads: PositiveInt | None = None,
        max_steps: Count | None = None,
        state_descriptor: str | tuple[str, ...] | Describe | None = None,
        observation: str | tuple[str, ...] | None = None,
        critic_observation: str | tuple[str, ...] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """**Arguments:**

        - `task_id`: a name that EnvPool knows, such as `"HalfCheetah-v5"`.
        - `num_threads`: how many threads step the simulators; by default EnvPool's
            choice, at most one for each core.
        - `max_steps`: the time limit, at least 1; by default the task's own.
        - `state_descriptor`: what describes the behavior: `"x"` or `"xy"` for the
            position that MuJoCo's walkers report; names of other infos; or a function
            of the infos of a step. `None` for no descriptor. Descriptors of a reset are
            0, even if the simulator is elsewhere.
        - `observation`: in observations that are dictionaries, the key or keys to see;
            `None` takes all.
        - `critic_observation`: likewise, the keys that critics see instead, as floats;
            `None` for the same ones.
        - `options`: EnvPool's own options, such as `{"reward_clip": True}`.
        """
        check_known("envpool", task_id, names())
        maker = _Maker(
            task_id=task_id,
            options=sorted_options(options),
            limit=None,
            num_threads=num_threads,
            keys=keys_of(observation),
            describe=described_by(state_descriptor),
            critic_keys=keys_of(critic_observation),
        )
        pool = maker.checked_pool()
        limit = max_steps
        # A limit of 0 stands for that of the level, which differs between episodes.
        if max_steps is None and 0 < pool.config["max_episode_steps"] < _NO_LIMIT:
            limit = int(pool.config["max_episode_steps"])
        _, infos = pool.reset()
        self._spec = maker.checked_interface(pool, infos).spec(
            task_id, _infos_of(infos, 0), limit
        )
        stacking, num_frames = None, pool.config.get("stack_num", 1)
        if num_frames > 1 and is_channels_first(pool.observation_space):
            channels, height, width = pool.observation_space.shape
            stacking = Stacking(num_frames, height * width, channels // num_frames)
        self._make = dataclasses.replace(maker, limit=limit, stacking=stacking)
        self._owner = new_owner()
        self._active = None
        self._begun = None

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def stacking(self) -> Stacking:
        """The frames that its observations consist of."""
        maker = self._make
        assert isinstance(maker, _Maker)
        return maker.stacking or Stacking(1, 1, self._spec.observation_size)


def picture_suffix(env: EnvPoolEnv) -> str:
    """The suffix of the file made from a simulator's images, if it can draw."""
    maker = env._make
    assert isinstance(maker, _Maker)
    _check_draws(maker.task_id)
    return ".gif"


def name_of(env: EnvPoolEnv) -> str:
    maker = env._make
    assert isinstance(maker, _Maker)
    return f"envpool/{maker.task_id}"


def descriptor_names(env: EnvPoolEnv) -> tuple[str, ...] | None:
    maker = env._make
    assert isinstance(maker, _Maker)
    return shown_names(maker.describe)


def in_whole_games(env: AnyEnv) -> AnyEnv:
    """The environment without `episodic_life` and `reward_clip`, in its wrappers.

    The result is the same environment unless it has these options of EnvPool.
    """
    inner = innermost(env)
    if not isinstance(inner, EnvPoolEnv):
        return env
    maker = inner._make
    assert isinstance(maker, _Maker)
    options = dict(maker.options)
    ends_with_life = options.pop("episodic_life", False)
    clips = options.pop("reward_clip", False)
    if not (ends_with_life or clips):
        return env
    whole = EnvPoolEnv(
        maker.task_id,
        num_threads=maker.num_threads,
        max_steps=maker.limit,
        state_descriptor=maker.describe,
        observation=maker.keys,
        critic_observation=maker.critic_keys,
        options=options,
    )
    # The wrappers hold a copy, so the simulators are those of the given environment.
    whole = eqx.tree_at(lambda env: env._owner, whole, inner._owner)
    return eqx.tree_at(innermost, env, whole)


def names() -> list[str]:
    check_installed("envpool", "An environment of EnvPool", "envpool")
    import envpool  # pyright: ignore[reportMissingImports]

    return sorted(envpool.list_all_envs())


def make(name: str, *, max_steps: int | None = None, **options: Any) -> EnvPoolEnv:
    return EnvPoolEnv(name, max_steps=max_steps, **options)
