"""Vector environments of Gymnasium, which step all of their copies together."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode, VectorEnv
from jaxtyping import Array, Bool, Float, Int, Shaped

from .._pytree.fields import Count, checked, shown
from .._types.data import EnvSpec
from ._base import keys_of
from ._host import AbstractHostEnv, HostState, new_owner
from ._interface import Describe, Interface, described_by
from ._simulators import AbstractSimulators, Began, MakeSimulators, Stepped


_Infos = dict[str, Any]

_LEFT_OUT = (
    "a vector environment steps all of its copies, so one that is left out of a step "
    "has to begin anew, but in the autoreset mode SAME_STEP episodes begin only where "
    "the simulator ends others. For `TimeLimit`, `ActionRepeat` or a lower `max_steps` "
    "make it with `autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED`"
)


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Makes the simulators of a `GymnasiumVectorEnv`; equal ones share compilations.

    The fields are the arguments of `GymnasiumVectorEnv`.
    """

    make: Callable[[int], VectorEnv]
    max_steps: int | None
    keys: tuple[str, ...] | None
    describe: Describe | tuple[str, ...] | None
    critic_keys: tuple[str, ...] | None

    def __call__(self, seeds: Sequence[int]) -> "_Vector":
        return _Vector(self, seeds)


class _Vector(AbstractSimulators):
    """The simulators of a vector environment."""

    def __init__(self, maker: _Maker, seeds: Sequence[int]) -> None:
        size = len(seeds)
        self.vector = vector = maker.make(size)
        made = f"`make={shown(maker.make)}` makes `{vector}`"
        if not isinstance(vector, VectorEnv) or vector.num_envs != size:
            raise ValueError(
                f"{made}, but called with {size} it must make a "
                f"`gymnasium.vector.VectorEnv` of `num_envs={size}`."
            )
        mode = vector.metadata.get("autoreset_mode")
        self._resets_itself = mode is AutoresetMode.SAME_STEP
        if not self._resets_itself and mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f'{made}, whose `metadata["autoreset_mode"]` is {mode}, but it must be '
                "DISABLED or SAME_STEP: in NEXT_STEP, Gymnasium's default, the step "
                "after an end is not a transition. Make it with "
                "`autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED`."
            )
        observed, acted = vector.single_observation_space, vector.single_action_space
        self.interface = Interface(
            observed, acted, maker.keys, maker.describe, maker.critic_keys
        )
        self._limit = maker.max_steps or np.inf
        # One for all, since not all vector environments take several; `None` once used.
        self._seed: int | None = seeds[0]
        self._times = np.zeros(size, int)
        # Copies whose episode is over, and those that moved only because others did.
        self._over, self._moved = np.zeros((2, size), bool)
        self._last: tuple[Any, _Infos] = (None, {})

    def begin(self, rows: Int[np.ndarray, " rows"]) -> Began:
        if self._seed is not None:
            self._last = self.vector.reset(seed=self._seed)
            self._seed = None
        elif not self._resets_itself:
            mask = np.isin(np.arange(len(self._over)), rows)
            self._last = self.vector.reset(options={"reset_mask": mask})
        elif np.any(~self._over[rows] | self._moved[rows]):
            raise ValueError(_LEFT_OUT)
        self._times[rows], self._over[rows], self._moved[rows] = 0, False, False
        return Began(*self._seen(rows, np.zeros(len(rows), bool)))

    def step(
        self, rows: Int[np.ndarray, " rows"], actions: Shaped[np.ndarray, "rows ..."]
    ) -> Stepped:
        if np.any(self._moved[rows]):
            raise ValueError(_LEFT_OUT)
        if not self._resets_itself and np.any(self._over):
            # None of these copies is among `rows`, and they could not take the step.
            self.vector.reset(options={"reset_mask": self._over})
        size = len(self._moved)
        self._moved[np.delete(np.arange(size), rows)] = True
        every = np.zeros((size, *actions.shape[1:]), actions.dtype)
        every[rows] = actions
        observation, reward, *flags, infos = self.vector.step(
            self.interface.action(every)
        )
        terminated, truncated = (np.array(each, bool) for each in flags)
        self._last, self._over = (observation, infos), terminated | truncated
        self._times += 1
        truncated |= self._times >= self._limit
        observation, descriptor, seen = self._seen(
            rows, self._over[rows] & self._resets_itself
        )
        return Stepped(
            observation=observation,
            reward=np.asarray(reward, float)[rows],
            terminated=terminated[rows],
            # At the limit both may be true.
            truncated=(truncated & ~terminated)[rows],
            descriptor=descriptor,
            critic_observation=seen,
        )

    def _seen(
        self, rows: Int[np.ndarray, " rows"], ended: Bool[np.ndarray, " rows"]
    ) -> tuple[
        Shaped[np.ndarray, "rows obs"],
        Float[np.ndarray, "rows descriptor"] | None,
        Shaped[np.ndarray, "rows critic_obs"] | None,
    ]:
        """Observations, descriptors and critic observations.

        If a step began the next episode, they are those of the end of the last one.
        """
        interface, (observation, infos) = self.interface, self._last
        critic, seen = interface.critic, None
        # By rows, which copies: the arrays may be the vector environment's own.
        vectors = interface.observations(observation)[rows]
        if critic is not None:
            seen = critic.observations(observation)[rows]
        for place in np.flatnonzero(ended):
            final = _infos_of(infos, int(rows[place]))["final_obs"]
            vectors[place] = interface.observation(final)
            if critic is not None and seen is not None:
                seen[place] = critic.observation(final)
        if interface.describe is None:
            return vectors, None, seen
        described = [
            interface.descriptor(
                each["final_info"] if is_final else each,
                begins=bool(self._times[row] == 0),
            )
            for is_final, row in zip(ended, rows.tolist(), strict=True)
            for each in [_infos_of(infos, row)]
        ]
        return vectors, np.stack(described), seen

    def picture(self, row: int) -> np.ndarray:
        raise NotImplementedError("there are no images of vector environments")

    def save(self, row: int) -> bytes | None:
        return None

    def restore(self, row: int, saved: bytes) -> bool:
        return False

    def close(self) -> None:
        self.vector.close()


def _infos_of(infos: _Infos, row: int) -> _Infos:
    """The infos of one copy: an array `_name` says which copies have `name`."""
    return {
        name: _infos_of(value, row) if isinstance(value, dict) else value[row]
        for name, value in infos.items()
        if isinstance(value, dict | np.ndarray)
        if not (name.startswith("_") and name[1:] in infos)
        if f"_{name}" not in infos or infos[f"_{name}"][row]
    }


class GymnasiumVectorEnv(AbstractHostEnv):
    """A vector environment of Gymnasium, such as a simulator of many copies.

    Its `metadata["autoreset_mode"]` must be `DISABLED`, where episodes begin with
    `reset(options={"reset_mask": mask})`, or `SAME_STEP`, where the step that ends one
    episode begins the next, and the infos hold its end as `final_obs` and `final_info`.
    So no transition is lost or invented.

    A vector environment steps all of its copies or none. Copies that should not take a
    step, such as those that have finished in an evaluation, are stepped as well, after
    a reset if their episode is over, and the results are discarded. Such copies can
    then only begin new episodes, which needs mode `DISABLED`, as do `TimeLimit`,
    `ActionRepeat` and a `max_steps` below the limit of the simulator. Copies that do
    take the step are not affected, except in later draws if all share one generator.

    Spaces and time limits are treated as in `GymnasiumEnv`. Copies can be neither drawn
    nor saved: training that is resumed in another process begins new episodes.
    """

    _make: MakeSimulators = eqx.field(static=True)
    _spec: EnvSpec = eqx.field(static=True)
    _owner: Int[Array, ""] = eqx.field(repr=False)
    _active: Bool[Array, ""] | None
    _begun: tuple[Bool[Array, ""], HostState] | None

    @checked
    def __init__(
        self,
        make: Callable[[int], VectorEnv],
        *,
        max_steps: Count | None = None,
        state_descriptor: str | tuple[str, ...] | Describe | None = None,
        observation: str | tuple[str, ...] | None = None,
        critic_observation: str | tuple[str, ...] | None = None,
    ) -> None:
        """**Arguments:**

        - `make`: a function from `num_envs` to a `gymnasium.vector.VectorEnv` of that
            size. It is called with 1 to read the spaces, and once for all environments
            of a training or an evaluation. Only the same function shares compilations.
        - `max_steps`: the time limit, at least 1; by default, and at most, that of the
            `spec` of the vector environment, if it has one.
        - `state_descriptor`, `observation`, `critic_observation`: as in `GymnasiumEnv`.
        """
        maker = _Maker(
            make=make,
            max_steps=max_steps,
            keys=keys_of(observation),
            describe=described_by(state_descriptor),
            critic_keys=keys_of(critic_observation),
        )
        with contextlib.closing(maker([0])) as one:
            observations, infos = one.vector.reset(seed=0)
            known = one.vector.spec
            own = None if known is None else known.max_episode_steps
            # That of the vector environment cannot be lifted.
            limit = min((x for x in (max_steps, own) if x is not None), default=None)
            self._spec = one.interface.spec(shown(make), _infos_of(infos, 0), limit)
            if isinstance(space := one.interface.observed, Dict):
                # What is not seen may be anything.
                keys = (
                    (*maker.keys, *(maker.critic_keys or ())) if maker.keys else space
                )
                observations = {key: observations[key] for key in keys}
            first = jax.tree.map(lambda rows: rows[0], observations)
            one.interface.check(shown(make), first)
        self._make = maker
        self._owner = new_owner()
        self._active = None
        self._begun = None

    @property
    def spec(self) -> EnvSpec:
        return self._spec
