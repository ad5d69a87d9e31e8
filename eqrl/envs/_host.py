"""Environments whose simulators live outside the compiled program.

A simulator has only one current state, its present, is stepped with others in a batch,
and loses its episode when it is reset. Here it is nevertheless a pure `reset` and
`step`: the state holds the number of a simulator and of its present, and a call that
`vmap` maps over many environments, at any depth, becomes one host call for all.
"""

import ctypes
import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._pytree.tree import map_parts, parts
from .._types.custom_types import Observation, PyTree, Tree
from .._types.data import Action
from ._base import (
    AbstractEnv,
    AbstractEnvWrapper,
    AnyEnv,
    Outcome,
    innermost,
)
from ._simulators import (
    FAILURES,
    GROUPS,
    LOCK,
    NUMBERS,
    OWNERS,
    PICTURES,
    Arrays,
    Group,
    MakeSimulators,
    SimulatorError,
    SimulatorFailure,
    answer,
    begin_rows,
    close_groups,
    make_rows,
    photograph_rows,
    release_rows,
    step_rows,
)


def new_owner() -> Int[Array, ""]:
    """A new number for an environment, as an array.

    Its simulators are closed when the array is collected. Changed copies of the
    environment that hold the same array keep them.
    """
    owner = next(OWNERS)
    number = jnp.asarray(owner, jnp.int32)
    weakref.finalize(number, close_groups, owner)
    return number


class HostState(eqx.Module):
    """The simulator, and which of its presents; or a stack of them.

    - `group`, `row`: the simulators that were made together, and which of them.
    - `tick`: counts its steps and its resets.
    - `descriptor`, `critic_observation`: those of the state, if there are any.
    """

    group: Int[Array, "*axes"]
    row: Int[Array, "*axes"]
    tick: Int[Array, "*axes"]
    descriptor: Float[Array, "*axes descriptor"] | None = None
    critic_observation: Float[Array, "*axes critic_obs"] | None = None


def without_copies_of_simulators(
    before: Tree, after: Tree, copied: Bool[Array, " members"]
) -> Tree:
    """A stack `after` some of its members were `copied`, except for simulators.

    A simulator cannot be copied: the member keeps its own, in no known present, so that
    new episodes begin in it.
    """

    def own(old: PyTree, new: PyTree) -> PyTree:
        if not isinstance(old, HostState):
            return new
        tick = jnp.where(copied[:, None], _NO_PRESENT, old.tick)
        return dataclasses.replace(new, group=old.group, row=old.row, tick=tick)

    is_state = lambda x: isinstance(x, HostState)
    return jax.tree.map(own, before, after, is_leaf=is_state)


# The tick of a state that is not any of a simulator's presents.
_NO_PRESENT = -1


class AbstractHostEnv(AbstractEnv[HostState]):
    """An environment whose simulators live outside the compiled program.

    A state is the number of a simulator, which `reset` makes, and of its present. Only
    the present can be stepped: a step from any other state gives `nan`.
    """

    _make: eqx.AbstractVar[MakeSimulators]
    # Not in the `repr`, by which a sweep recognizes its environment in another process.
    _owner: eqx.AbstractVar[Int[Array, ""]]
    # Set by `stepping_where` and `beginning_where` for the calls of one step.
    _active: eqx.AbstractVar[Bool[Array, ""] | None]
    _begun: eqx.AbstractVar[tuple[Bool[Array, ""], HostState] | None]

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[HostState, Observation[Array, " obs"]]:
        if self._begun is not None:
            over, state = self._begun
            begin = lambda *arrays: answer(begin_rows, *arrays)
            state, outcome = self._after(begin, state, over)
            return state, outcome.observation
        make = self._make
        # Not negative, as simulators take seeds.
        seed = (jr.bits(key, dtype=jnp.uint32) >> 1).astype(jnp.int32)
        number = _shape(jnp.int32)
        group, row, observation, *described = _call(
            lambda *arrays: make_rows(make, *arrays),
            (number, number, self.spec.observation_struct, *self._described.values()),
            self._owner,
            seed,
        )
        described = dict(zip(self._described, described, strict=True))
        return HostState(group, row, jnp.zeros_like(row), **described), observation

    def step(
        self, state: HostState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[HostState, Outcome]:
        del key
        step = lambda *arrays: answer(step_rows, *arrays)
        active = () if self._active is None else (self._active,)
        return self._after(step, state, action, *active)

    def _after(
        self,
        function: Callable[[Arrays, Arrays], None],
        state: HostState,
        *given: Array,
    ) -> tuple[HostState, Outcome]:
        """The state and the outcome after a call of the simulators."""
        seen, flag = self.spec.observation_struct, _shape(bool)
        further = self._described
        tick, observation, reward, terminated, truncated, *described = _call(
            function,
            (_shape(jnp.int32), seen, _shape(float), flag, flag, *further.values()),
            state.group,
            state.row,
            state.tick,
            *given,
        )
        outcome = Outcome(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )
        described = dict(zip(further, described, strict=True))
        return HostState(state.group, state.row, tick, **described), outcome

    @property
    def _described(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Fields of a state besides its simulator."""
        sizes = {
            "descriptor": self.spec.state_descriptor_size,
            "critic_observation": self.spec.critic_observation_size,
        }
        return {key: _shape(float, n) for key, n in sizes.items() if n is not None}

    def state_descriptor(self, state: HostState) -> Float[Array, " descriptor"] | None:
        return state.descriptor

    def critic_observation(
        self, state: HostState
    ) -> Float[Array, " critic_obs"] | None:
        return state.critic_observation


def _shape(kind: type, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.result_type(kind))


def _inner(env: AnyEnv) -> AbstractHostEnv:
    """The environment inside all wrappers, which is one outside JAX."""
    inner = innermost(env)
    assert isinstance(inner, AbstractHostEnv)
    return inner


def is_host(env: AnyEnv) -> bool:
    """Whether the simulators of an environment live outside the compiled program."""
    return isinstance(innermost(env), AbstractHostEnv)


def stepping_where(env: AnyEnv, active: Bool[Array, ""]) -> AnyEnv:
    """The environment, whose simulator steps only where `active`.

    Elsewhere its next step returns the result of the last one. Other environments are
    pure: their steps can be dropped, so they are returned unchanged.
    """
    if not is_host(env):
        return env
    before = _inner(env)._active
    active = active if before is None else active & before
    return eqx.tree_at(
        lambda env: _inner(env)._active, env, active, is_leaf=lambda x: x is None
    )


def beginning_where(env: AnyEnv, over: Bool[Array, ""], state: PyTree) -> AnyEnv:
    """The environment, whose next reset begins an episode only where `over`.

    It does so in the simulator of `state`, and leaves it alone where not `over`, even
    if the reset of a wrapper steps it.
    """
    inner = env
    while isinstance(inner, AbstractEnvWrapper):
        inner, state = inner.inner, inner.inner_state(state)
    env = eqx.tree_at(
        lambda env: _inner(env)._begun,
        env,
        (over, state),
        is_leaf=lambda x: x is None,
    )
    return stepping_where(env, over)


def release(state: PyTree, *, abandoned: bool = False) -> None:
    """Closes simulators whose states are not used again, even within a program.

    Those that were made together are closed together, when none of them is used.
    `state` is a stack, whose arrays are ready when the simulators have taken their last
    step. With `abandoned`, only those that `without_copies_of_simulators` left are no
    longer used.
    """
    for each in parts(state, HostState):
        group = each.group
        if abandoned:
            group = jnp.where(each.tick == _NO_PRESENT, group, 0)
        # The ticks are passed so that this waits for the last step.
        _call(release_rows, (_shape(bool),), group, each.row, each.tick)


def are_present(env: AnyEnv, state: PyTree) -> Bool[np.ndarray, "*axes"]:
    """Whether each state of a stack is the present of a simulator of `env`."""
    (each,), owner = parts(state, HostState), _owner_of(env)
    groups, rows, ticks = (np.asarray(x) for x in (each.group, each.row, each.tick))

    def is_present(number: int, row: int, tick: int) -> bool:
        group = GROUPS.get(number)
        if group is None or group.failed or group.owner != owner:
            return False
        return bool(not group.released[row] and group.ticks[row] == tick)

    flat = list(map(is_present, *(x.ravel().tolist() for x in (groups, rows, ticks))))
    return np.array(flat, bool).reshape(groups.shape)


def saved_simulators(state: PyTree) -> dict[str, np.ndarray] | None:
    """The simulators of states as bytes, for another process.

    **Returns:**

    The bytes of all, and the number of bytes of each; `None` if there are none, if one
    cannot be saved, or if a state is not its present.
    """
    saved: list[bytes] = []
    for each in parts(state, HostState):
        rows = zip(*map(np.ravel, (each.group, each.row, each.tick)), strict=True)
        for number, row, tick in rows:
            group = GROUPS.get(int(number))
            if group is None or group.failed or group.ticks[row] != tick:
                return None
            try:
                content = group.simulators.save(int(row))
            except Exception:
                # What was learned is saved even if a simulator's process has died.
                content = None
            if content is None:
                return None
            saved.append(content)
    if not saved:
        return None
    return {
        "bytes": np.frombuffer(b"".join(saved), np.uint8),
        "lengths": np.array([len(content) for content in saved], int),
    }


def with_simulators(env: AnyEnv, tree: Tree, saved: dict[str, np.ndarray]) -> Tree:
    """The tree with new simulators, in the states in which others were saved.

    `saved` is from `saved_simulators`.
    """
    [state] = parts(tree, HostState)
    new = _restored(env, state, saved)
    # Otherwise new episodes begin: these are not simulators of `env`.
    return tree if new is None else map_parts(lambda _: new, tree, HostState)


def _restored(
    env: AnyEnv, state: HostState, saved: dict[str, np.ndarray]
) -> HostState | None:
    ends = np.cumsum(saved["lengths"])
    contents = [
        saved["bytes"][end - length : end].tobytes()
        for end, length in zip(ends, saved["lengths"], strict=True)
    ]
    shape = np.shape(state.row)
    size = shape[-1]
    rows, numbers = np.arange(size, dtype=np.int32), []
    for first in range(0, len(contents), size):
        simulators = _inner(env)._make([0] * size)
        began = simulators.begin(rows)
        given = enumerate(contents[first : first + size])
        if not all(simulators.restore(row, content) for row, content in given):
            simulators.close()
            return None
        group = Group(simulators, _owner_of(env), size, began)
        # It is not known when their episodes began.
        group.first_ticks[:] = np.iinfo(np.int32).max
        numbers.append(next(NUMBERS))
        with LOCK:
            GROUPS[numbers[-1]] = group
    arrays = (
        np.repeat(np.array(numbers, np.int32), size).reshape(shape),
        np.broadcast_to(rows, shape),
        np.zeros(shape, np.int32),
    )
    group, row, tick = (
        jax.device_put(jnp.asarray(new), old.sharding)
        for new, old in zip(arrays, (state.group, state.row, state.tick), strict=True)
    )
    return dataclasses.replace(state, group=group, row=row, tick=tick)


def has_failed(env: AnyEnv) -> bool:
    """Whether a simulator of an environment failed since `failure_of` was called."""
    return is_host(env) and _owner_of(env) in FAILURES


def failure_of(env: AnyEnv) -> SimulatorFailure | None:
    """The failure of a simulator of an environment since the last call, if any."""
    # Within a program that is given the environment, it is not known which one it is.
    if not is_host(env) or isinstance(_inner(env)._owner, jax.core.Tracer):
        return None
    return FAILURES.pop(_owner_of(env), None)


def _owner_of(env: AnyEnv) -> int:
    return int(np.asarray(_inner(env)._owner))


def checked_result(env: AnyEnv, run: Callable[[], Tree]) -> Tree:
    """The result of a program in which simulators of `env` are stepped.

    Raises a `SimulatorError` if one of them fails. Within another program, that is only
    known at the end of the outer one.
    """
    # A failure in an earlier program, such as a loop of the user's, is not this one's.
    failure_of(env)
    result = run()
    leaves = jax.tree.leaves(result)
    if is_host(env) and not any(isinstance(x, jax.core.Tracer) for x in leaves):
        jax.block_until_ready(leaves)
        failure = failure_of(env)
        if failure is not None:
            if isinstance(failure.error, KeyboardInterrupt):
                raise failure.error
            raise SimulatorError(failure) from failure.error
    return result


def photographed(states: Tree) -> Tree:
    """Takes images of states within a program, and returns the same states.

    `states` is a stack of presents of simulators; `pictures_of` then returns their
    images.
    """

    def photograph(state: HostState) -> HostState:
        which = (state.group, state.row, state.tick)
        (tick,) = _call(photograph_rows, (_shape(jnp.int32),), *which)
        # A step needs the tick, so it waits for the image.
        return dataclasses.replace(state, tick=tick)

    return map_parts(jax.vmap(photograph), states, HostState)


def pictures_of(states: PyTree) -> list[np.ndarray]:
    """The images of the presents of one simulator, which are then forgotten."""
    (state,) = parts(states, HostState)
    return [*PICTURES.pop(int(np.ravel(state.group)[0]), {}).values()]


# The threads of XLA that have called the host.
_THREADS: set[int] = set()


def _call(
    function: Callable[[Arrays, Arrays], None],
    results: tuple[jax.ShapeDtypeStruct, ...],
    *arguments: Array,
) -> tuple[Array, ...]:
    """Calls a function of the host, which fills in the results.

    It sees arrays with an axis `rows`: however many axes `vmap` adds, there is one call
    with all rows. It must not raise, since that would discard all progress.
    """

    @custom_vmap
    def of_rows(*arrays: Array) -> tuple[Array, ...]:
        size = arrays[0].shape[0]
        shapes = tuple(
            jax.ShapeDtypeStruct((size, *each.shape), each.dtype) for each in results
        )

        def fill(context: object, buffers: Sequence[Any], *views: Any) -> None:
            thread = threading.get_ident()
            if thread not in _THREADS:
                _THREADS.add(thread)
                # Python sets up a foreign thread for a call and forgets it after the
                # last release, which takes 30 to 50 microseconds. This one is never
                # released, so the thread stays set up.
                ctypes.pythonapi.PyGILState_Ensure()
            arguments = [np.asarray(view) for view in views]
            function(arguments, [np.asarray(buffer) for buffer in buffers])

        def filled(*views: Array) -> Arrays:
            buffers = [np.empty(each.shape, each.dtype) for each in shapes]
            fill(None, buffers, *views)
            return buffers

        # If buffers are on the host, this takes a tenth of the time.
        if jax.default_backend() == "cpu":
            called = buffer_callback(fill, shapes, has_side_effect=True)(*arrays)
        else:
            called = io_callback(filled, shapes, *arrays)
        return tuple(called)

    @of_rows.def_vmap
    def of_more_rows(
        size: int, mapped: Sequence[bool], *arrays: Array
    ) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
        wide = [
            array if each else jnp.broadcast_to(array[None], (size, *array.shape))
            for array, each in zip(arrays, mapped, strict=True)
        ]
        flat = of_rows(*(array.reshape(-1, *array.shape[2:]) for array in wide))
        split = tuple(array.reshape(size, -1, *array.shape[1:]) for array in flat)
        return split, (True,) * len(split)

    return tuple(array[0] for array in of_rows(*(each[None] for each in arguments)))
