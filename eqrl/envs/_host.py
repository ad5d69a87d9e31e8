"""Environments whose simulators live outside the compiled program.

A simulator has one present, is stepped with others in a batch, and loses its episode
where it is reset. Still it is written here as one pure `reset` and `step`: the state
holds the number of a simulator and of its present, and a call that `vmap` maps over
many environments, at any depth, becomes one call of the host with all of them.
"""

import abc
import contextlib
import itertools
import math
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from .._types.custom_types import Observation, PyTree, Tree
from .._types.data import Action, EnvSpec
from ._base import (
    AbstractEnv,
    AbstractEnvWrapper,
    AnyEnv,
    Outcome,
    innermost,
    no_devices,
)


class Began(NamedTuple):
    """First states of episodes, one in each row.

    - `observation`: as `EnvSpec` says.
    - `descriptor`: of the state; `None` if there is none.
    """

    observation: Shaped[np.ndarray, "rows obs"]
    descriptor: Float[np.ndarray, "rows descriptor"] | None


class Stepped(NamedTuple):
    """Results of a step, one in each row.

    - `observation`, `descriptor`: of the state reached, also where an episode ends.
    - `reward`: of the step.
    - `terminated`, `truncated`: how the episode ended, if it did.
    """

    observation: Shaped[np.ndarray, "rows obs"]
    reward: Float[np.ndarray, " rows"]
    terminated: Bool[np.ndarray, " rows"]
    truncated: Bool[np.ndarray, " rows"]
    descriptor: Float[np.ndarray, "rows descriptor"] | None


class AbstractSimulators(abc.ABC):
    """Simulators that are stepped together, in NumPy.

    They never reset themselves. What they raise ends the training.
    """

    @abc.abstractmethod
    def begin(self, rows: Int[np.ndarray, " rows"]) -> Began:
        """Begins an episode in some of the simulators, and leaves all others alone."""

    @abc.abstractmethod
    def step(
        self, rows: Int[np.ndarray, " rows"], actions: Shaped[np.ndarray, "rows ..."]
    ) -> Stepped:
        """Advances some of the simulators by one step, none of which is over."""

    @abc.abstractmethod
    def picture(self, row: int) -> np.ndarray:
        """An image of a simulator's present, in red, green and blue."""

    @abc.abstractmethod
    def save(self, row: int) -> bytes | None:
        """The whole state of a simulator; `None` if it cannot be saved."""

    @abc.abstractmethod
    def restore(self, row: int, saved: bytes) -> None:
        """Takes a simulator back to a state that was saved."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the simulators, with their processes and threads."""


MakeSimulators = Callable[[Sequence[int]], AbstractSimulators]
"""Makes a simulator for each seed. Equal ones share compilations, so it is hashable."""


class SimulatorFailure(NamedTuple):
    """What went wrong in a simulator.

    - `error`: what it raised, or what says in which way its result is wrong.
    - `row`: which simulator, if that is known.
    - `step`: how many steps of its episode it had taken, if that is known.
    """

    error: BaseException
    row: int | None
    step: int | None

    def __str__(self) -> str:
        where = "A simulator failed"
        if self.row is not None:
            where = f"The simulator of environment {self.row} failed"
        when = "" if self.step is None else f" after {self.step} steps of its episode"
        return f"{where}{when}: {type(self.error).__name__}: {self.error}"


class SimulatorError(RuntimeError):
    """A simulator outside the compiled program raised, or gave `nan`.

    What it raised is the cause of this error.

    **Attributes:**

    - `solution`: what training had reached before; `None` outside of training.
    - `row`: which environment, from 0; `None` if it is not known.
    - `episode_step`: how many steps of its episode it had taken; `None` likewise.
    """

    def __init__(
        self,
        failure: SimulatorFailure,
        solution: Any = None,
        *,
        step: int | None = None,
    ) -> None:
        message = str(failure)
        if step is not None:
            message = (
                f"{message}\nTraining had taken {step} environment steps; what it had "
                "reached before is the `solution` of this error."
            )
        super().__init__(message)
        self.solution = solution
        self.row = failure.row
        self.episode_step = failure.step
        self.__cause__ = failure.error


class RowError(Exception):
    """Says in which row an error happened, which is its cause."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


_Arrays = list[np.ndarray]


class _Group:
    """Simulators that were made together, and where each is."""

    def __init__(
        self, simulators: AbstractSimulators, owner: int, size: int, began: Began
    ) -> None:
        self.simulators = simulators
        self.owner = owner
        self.all_rows = np.arange(size, dtype=np.int32).tobytes()
        # How often each was stepped or begun: the number of its present.
        self.ticks = np.zeros(size, np.int32)
        # Since its episode began.
        self.steps = np.zeros(size, int)
        no = np.zeros(size, bool)
        # The results of the last call of each.
        self.last = Stepped(
            began.observation, np.zeros(size), no, no.copy(), began.descriptor
        )
        self.any_over = False
        self.failed = False

    def put(self, rows: Int[np.ndarray, " rows"], results: Stepped) -> None:
        """Records the results of a call of some simulators."""
        if rows.tobytes() == self.all_rows:
            self.last = results
        else:
            # Copies: those that were put may be arrays of the simulators' own.
            parts = [None if each is None else np.array(each) for each in self.last]
            for part, new in zip(parts, results, strict=True):
                if part is not None:
                    part[rows] = new
            self.last = Stepped(*parts)
        self.any_over = bool(self.last.terminated.any() or self.last.truncated.any())
        self.ticks[rows] += 1


# By number. A number is never used again, and a process begins with a random one, so
# that one of a checkpoint is not mistaken for one that lives here.
_groups: dict[int, _Group] = {}
_failures: dict[int, SimulatorFailure] = {}
# Of groups of one simulator that is drawn, by its ticks.
_pictures: dict[int, dict[int, np.ndarray]] = {}
_numbers = itertools.count(secrets.randbelow(2**30) + 1)
_owners = itertools.count(1)
_lock = threading.Lock()


def _close_groups(owner: int) -> None:
    """Closes what is left of the simulators of an environment."""
    with _lock:
        numbers = [n for n, group in _groups.items() if group.owner == owner]
        groups = [_groups.pop(number) for number in numbers]
    for group in groups:
        group.simulators.close()


def new_owner(env: AnyEnv) -> Int[Array, ""]:
    """A number for an environment; what is made for it ends when it is collected."""
    owner = next(_owners)
    weakref.finalize(env, _close_groups, owner)
    return jnp.asarray(owner, jnp.int32)


class HostState(eqx.Module):
    """Which simulator, and which present of it; or a stack of them.

    - `group`, `row`: the simulators that were made together, and which of them.
    - `tick`: counts its steps and its resets.
    - `descriptor`: of the state, if there is one.
    """

    group: Int[Array, "*axes"]
    row: Int[Array, "*axes"]
    tick: Int[Array, "*axes"]
    descriptor: Float[Array, "*axes descriptor"] | None


def without_copies_of_simulators(
    before: Tree, after: Tree, copied: Bool[Array, " members"]
) -> Tree:
    """A stack `after` some of its members were `copied`, simulators left out.

    A simulator cannot be copied: the member keeps its own, in no known present, so that
    new episodes begin in it.
    """

    def own(old: PyTree, new: PyTree) -> PyTree:
        if not isinstance(old, HostState):
            return new
        tick = jnp.where(copied[:, None], _NO_PRESENT, old.tick)
        return HostState(old.group, old.row, tick, new.descriptor)

    is_state = lambda x: isinstance(x, HostState)
    return jax.tree.map(own, before, after, is_leaf=is_state)


# The tick of a state that is none of a simulator's presents.
_NO_PRESENT = -1


class AbstractHostEnv(AbstractEnv[HostState]):
    """An environment whose simulators live outside the compiled program.

    A state is the number of a simulator, which `reset` makes, and of its present. Only
    the present can be stepped: a step from any other state gives `nan`.
    """

    _make: eqx.AbstractVar[MakeSimulators]
    _spec: eqx.AbstractVar[EnvSpec]
    _owner: eqx.AbstractVar[Int[Array, ""]]
    # Set by `stepping_where` and `beginning_where` for the calls of one step.
    _active: eqx.AbstractVar[Bool[Array, ""] | None]
    _begun: eqx.AbstractVar[tuple[Bool[Array, ""], HostState] | None]

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[HostState, Observation[Array, " obs"]]:
        if self._begun is not None:
            over, state = self._begun
            begin = lambda *arrays: _answer(_begin, *arrays)
            state, outcome = self._after(begin, state, over)
            return state, outcome.observation
        make = self._make
        # Not negative, as simulators take seeds.
        seed = (jr.bits(key, dtype=jnp.uint32) >> 1).astype(jnp.int32)
        number, (observation, *descriptor) = _shape(jnp.int32), self._seen
        group, row, observation, *descriptor = _call(
            lambda *arrays: _made(make, *arrays),
            (number, number, observation, *descriptor),
            self._owner,
            seed,
        )
        state = HostState(group, row, jnp.zeros_like(row), *descriptor or [None])
        return state, observation

    def step(
        self, state: HostState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[HostState, Outcome]:
        del key
        active = jnp.array(True) if self._active is None else self._active
        step = lambda *arrays: _answer(_step, *arrays)
        return self._after(step, state, active, action)

    def _after(
        self,
        function: Callable[[_Arrays, _Arrays], None],
        state: HostState,
        *given: Array,
    ) -> tuple[HostState, Outcome]:
        """The state and the outcome after a call of the simulators."""
        flag, (observation, *descriptor) = _shape(bool), self._seen
        tick, observation, reward, terminated, truncated, *descriptor = _call(
            function,
            (_shape(jnp.int32), observation, _shape(float), flag, flag, *descriptor),
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
        after = HostState(state.group, state.row, tick, *descriptor or [None])
        return after, outcome

    @property
    def _seen(self) -> list[jax.ShapeDtypeStruct]:
        """An observation and, if there is one, a descriptor."""
        size = self._spec.state_descriptor_size
        described = [] if size is None else [_shape(float, size)]
        return [self._spec.observation_struct, *described]

    def state_descriptor(self, state: HostState) -> Float[Array, " descriptor"] | None:
        return state.descriptor


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

    Elsewhere its next step gives what the last one gave. Other environments are pure:
    their steps can be dropped, so they stay as they are.
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

    It does so in the simulator of `state`, and leaves it alone where not `over`.
    """
    if not is_host(env):
        return env
    inner = env
    while isinstance(inner, AbstractEnvWrapper):
        inner, state = inner.inner, inner.inner_state(state)
    return eqx.tree_at(
        lambda env: _inner(env)._begun,
        env,
        (over, state),
        is_leaf=lambda x: x is None,
    )


def host_states(tree: PyTree) -> list[HostState]:
    """All states of simulators within a tree."""
    is_state = lambda x: isinstance(x, HostState)
    return [x for x in jax.tree.leaves(tree, is_leaf=is_state) if is_state(x)]


def release(state: PyTree, *, abandoned: bool = False) -> None:
    """Closes the simulators of states that are not used again, in a program too.

    `state` is a stack, whose arrays say when the simulators have taken their last step.
    With `abandoned`, only those that are left by `without_copies_of_simulators` are
    closed.
    """
    for each in host_states(state):
        group = each.group
        if abandoned:
            group = jnp.where(each.tick == _NO_PRESENT, group, 0)
        # The ticks are there so that this waits for the last step.
        _call(_release, (_shape(bool),), group, each.tick)


def are_present(env: AnyEnv, state: PyTree) -> Bool[np.ndarray, "*axes"]:
    """Whether each state of a stack is the present of a simulator of `env`."""
    (each,), owner = host_states(state), _owner_of(env)
    groups, rows, ticks = (np.asarray(x) for x in (each.group, each.row, each.tick))

    def is_present(number: int, row: int, tick: int) -> bool:
        group = _groups.get(number)
        if group is None or group.failed or group.owner != owner:
            return False
        return bool(group.ticks[row] == tick)

    flat = [
        is_present(int(number), int(row), int(tick))
        for number, row, tick in zip(groups.flat, rows.flat, ticks.flat, strict=True)
    ]
    return np.array(flat, bool).reshape(groups.shape)


def saved_simulators(state: PyTree) -> dict[str, np.ndarray] | None:
    """All that is needed to go on with the simulators of states in another process.

    **Returns:**

    The bytes of all, and the number of bytes of each; `None` if there are none, if one
    cannot be saved, or if a state is not its present.
    """
    parts: list[bytes] = []
    for each in host_states(state):
        rows = zip(*map(np.ravel, (each.group, each.row, each.tick)), strict=True)
        for number, row, tick in rows:
            group = _groups.get(int(number))
            if group is None or group.failed or group.ticks[row] != tick:
                return None
            saved = group.simulators.save(int(row))
            if saved is None:
                return None
            parts.append(saved)
    if not parts:
        return None
    return {
        "bytes": np.frombuffer(b"".join(parts), np.uint8),
        "lengths": np.array([len(part) for part in parts], int),
    }


def with_simulators(env: AnyEnv, tree: Tree, saved: dict[str, np.ndarray]) -> Tree:
    """The tree with states of new simulators, which go on where others were saved.

    `saved` is from `saved_simulators`.
    """
    is_state = lambda x: isinstance(x, HostState)
    [state] = host_states(tree)
    new = _restored(env, state, saved)
    return jax.tree.map(lambda x: new if is_state(x) else x, tree, is_leaf=is_state)


def _restored(env: AnyEnv, state: HostState, saved: dict[str, np.ndarray]) -> HostState:
    ends = np.cumsum(saved["lengths"])
    parts = [
        saved["bytes"][end - length : end].tobytes()
        for end, length in zip(ends, saved["lengths"], strict=True)
    ]
    shape = np.shape(state.row)
    size = shape[-1]
    rows, numbers = np.arange(size, dtype=np.int32), []
    for first in range(0, len(parts), size):
        simulators = _inner(env)._make([0] * size)
        began = simulators.begin(rows)
        for row in rows:
            simulators.restore(int(row), parts[first + row])
        group = _Group(simulators, _owner_of(env), size, began)
        if began.descriptor is not None:
            described = np.asarray(state.descriptor).reshape(
                -1, *began.descriptor.shape
            )
            began.descriptor[:] = described[first // size]
        numbers.append(next(_numbers))
        with _lock:
            _groups[numbers[-1]] = group
    arrays = (
        np.repeat(np.array(numbers, np.int32), size).reshape(shape),
        np.broadcast_to(rows, shape),
        np.zeros(shape, np.int32),
    )
    group, row, tick = (
        jax.device_put(jnp.asarray(new), old.sharding)
        for new, old in zip(arrays, (state.group, state.row, state.tick), strict=True)
    )
    return HostState(group, row, tick, state.descriptor)


def failure_of(env: AnyEnv) -> SimulatorFailure | None:
    """What went wrong in a simulator of an environment since this was asked."""
    return _failures.pop(_owner_of(env), None) if is_host(env) else None


def _owner_of(env: AnyEnv) -> int:
    return int(np.asarray(_inner(env)._owner))


def checked_result(env: AnyEnv, result: Tree) -> Tree:
    """The result of a program in which simulators of `env` were stepped.

    Raises a `SimulatorError` if one of them failed. Within another program that is
    found out at the end of that one.
    """
    leaves = jax.tree.leaves(result)
    if is_host(env) and not any(isinstance(x, jax.core.Tracer) for x in leaves):
        jax.block_until_ready(leaves)
        failure = failure_of(env)
        if failure is not None:
            raise SimulatorError(failure)
    return result


def photographed(states: Tree) -> Tree:
    """Within a program, the same states, after images of them were taken.

    `states` is a stack of presents of simulators, of which `pictures_of` then gives the
    images.
    """

    def photograph(state: HostState) -> HostState:
        which = (state.group, state.row, state.tick)
        (tick,) = _call(_photograph, (_shape(jnp.int32),), *which)
        # A step needs the tick, so it waits for the image.
        return HostState(state.group, state.row, tick, state.descriptor)

    is_state = lambda x: isinstance(x, HostState)
    each = lambda x: jax.vmap(photograph)(x) if is_state(x) else x
    return jax.tree.map(each, states, is_leaf=is_state)


def pictures_of(states: PyTree) -> list[np.ndarray]:
    """The images of the presents of one simulator, which are then forgotten."""
    (state,) = host_states(states)
    return [*_pictures.pop(int(np.ravel(state.group)[0]), {}).values()]


def _call(
    function: Callable[[_Arrays, _Arrays], None],
    results: tuple[jax.ShapeDtypeStruct, ...],
    *arguments: Array,
) -> tuple[Array, ...]:
    """Calls a function of the host, which fills the results in.

    It sees arrays with an axis `rows`: however many axes `vmap` adds, it is one call
    with all rows. It must not raise, which would delete what was learned.
    """

    @custom_vmap
    def of_rows(*arrays: Array) -> tuple[Array, ...]:
        size = arrays[0].shape[0]
        shapes = tuple(
            jax.ShapeDtypeStruct((size, *each.shape), each.dtype) for each in results
        )

        def fill(context: object, buffers: Sequence[Any], *views: Any) -> None:
            arguments = [np.asarray(view) for view in views]
            function(arguments, [np.asarray(buffer) for buffer in buffers])

        def filled(*views: Array) -> _Arrays:
            buffers = [np.empty(each.shape, each.dtype) for each in shapes]
            fill(None, buffers, *views)
            return buffers

        # Where buffers are the host's, this takes a tenth of the time.
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


def _made(make: MakeSimulators, arguments: _Arrays, results: _Arrays) -> None:
    """Makes simulators and begins an episode in each."""
    owners, seeds = arguments
    groups, rows, observation, *descriptor = results
    owner, number = int(owners[0]), next(_numbers)
    groups[:], rows[:] = number, np.arange(len(seeds))
    try:
        simulators = make([int(seed) for seed in seeds])
        group = _Group(simulators, owner, len(seeds), simulators.begin(rows))
        observation[:] = group.last.observation
        for each in descriptor:
            each[:] = group.last.descriptor
    except BaseException as error:
        _fail(owner, error)
        _fill((observation, *descriptor), slice(None))
        return
    with _lock:
        _groups[number] = group


def _answer(
    function: Callable[..., None], arguments: _Arrays, results: _Arrays
) -> None:
    """Calls a function of a group, its rows and what was given for them.

    The results are the presents of the simulators and their last results. Those of a
    simulator that has failed, or whose present is another, are `nan`.
    """
    groups, rows, ticks, *given = arguments
    number = int(groups[0])
    group = _groups.get(number)
    # Nearly always it is a whole group. Bytes are compared at once, where each
    # operation of NumPy takes a microsecond.
    if group is not None and rows.tobytes() == group.all_rows:
        if groups.tobytes() == groups[:1].tobytes() * len(groups):
            _answer_of_group(function, group, slice(None), rows, ticks, given, results)
            return
    for number in np.unique(groups):
        chosen = np.flatnonzero(groups == number)
        group = _groups.get(int(number))
        parts = [each[chosen] for each in given]
        of = rows[chosen]
        _answer_of_group(function, group, chosen, of, ticks[chosen], parts, results)


def _answer_of_group(
    function: Callable[..., None],
    group: _Group | None,
    chosen: Int[np.ndarray, " chosen"] | slice,
    rows: Int[np.ndarray, " chosen"],
    ticks: Int[np.ndarray, " chosen"],
    given: _Arrays,
    results: _Arrays,
) -> None:
    """Answers for one group, whose results are those that are `chosen`."""
    is_whole = isinstance(chosen, slice)
    if group is not None and not group.failed:
        presents = group.ticks if is_whole else group.ticks[rows]
        if presents.tobytes() == ticks.tobytes():
            try:
                function(group, rows, *given)
                answers = (group.ticks, *group.last)
                for result, answer in zip(results, answers, strict=False):
                    result[chosen] = answer if is_whole else answer[rows]
                return
            except BaseException as error:
                group.failed = True
                _fail(group.owner, error, group.steps)
    _fill(results, chosen)


def _fill(
    results: Iterable[np.ndarray], chosen: Int[np.ndarray, " chosen"] | slice
) -> None:
    """Makes results `nan` where there are none, or 0 if they are no floats."""
    for result in results:
        result[chosen] = np.nan if result.dtype.kind == "f" else 0


def _step(
    group: _Group,
    rows: Int[np.ndarray, " rows"],
    active: Bool[np.ndarray, " rows"],
    actions: Shaped[np.ndarray, "rows ..."],
) -> None:
    """Steps the simulators that are active and not over."""
    moving = active
    if group.any_over:
        moving = active & ~(group.last.terminated | group.last.truncated)[rows]
    if not moving.any():
        return
    # A copy in any case: a simulator may write into its actions, which are XLA's.
    rows, actions = rows[moving], actions[moving]
    if not _is_finite(actions):
        # That is the agent's fault, which the training sees by itself.
        group.last.reward[rows] = np.nan
        return
    stepped = group.simulators.step(rows, actions)
    group.put(rows, stepped)
    group.steps[rows] += 1
    if not (_is_finite(stepped.reward) and _is_finite(stepped.observation)):
        finite = np.isfinite(stepped.reward)
        finite &= np.isfinite(stepped.observation).all(axis=-1)
        wrong = ValueError("it gave an observation or a reward that is nan or infinite")
        raise RowError(int(rows[np.argmin(finite)])) from wrong


def _is_finite(values: Shaped[np.ndarray, "..."]) -> bool:
    """Whether all are finite numbers, or no floats."""
    if values.dtype.kind != "f":
        return True
    # 0 times what is not finite is nan. This is the quickest way of asking.
    return not math.isnan(np.vdot(values, np.zeros(values.size, values.dtype)))


def _begin(
    group: _Group, rows: Int[np.ndarray, " rows"], over: Bool[np.ndarray, " rows"]
) -> None:
    """Begins an episode in the simulators whose last one is over."""
    rows = rows[over]
    if len(rows) == 0:
        return
    began = group.simulators.begin(rows)
    size = len(rows)
    no = np.zeros(size, bool)
    group.put(
        rows, Stepped(began.observation, np.zeros(size), no, no, began.descriptor)
    )
    group.steps[rows] = 0


def _photograph(arguments: _Arrays, results: _Arrays) -> None:
    """Keeps an image of each present, once."""
    results[0][:] = arguments[2]
    for number, row, tick in zip(*(each.tolist() for each in arguments), strict=True):
        group, taken = _groups.get(number), _pictures.setdefault(number, {})
        if group is None or group.failed or tick in taken:
            continue
        try:
            with no_devices():
                taken[tick] = group.simulators.picture(row)
        except BaseException as error:
            group.failed = True
            wrong = RowError(row)
            wrong.__cause__ = error
            _fail(group.owner, wrong, group.steps)


def _release(arguments: _Arrays, results: _Arrays) -> None:
    """Closes the simulators of these groups."""
    results[0].fill(True)
    for number in np.unique(arguments[0]):
        with _lock:
            group = _groups.pop(int(number), None)
        if group is not None:
            with contextlib.suppress(Exception):
                group.simulators.close()


def _fail(
    owner: int, error: BaseException, steps: Int[np.ndarray, " all"] | None = None
) -> None:
    """Records the first failure in the simulators of an environment."""
    row = None
    if isinstance(error, RowError):
        row, error = error.row, error.__cause__ or error
    step = None if row is None or steps is None else int(steps[row])
    with _lock:
        _failures.setdefault(owner, SimulatorFailure(error, row, step))
