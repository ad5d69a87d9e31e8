"""Simulators outside JAX, in NumPy: batches of them, and the present of each.

The functions that end in `_rows` and `answer` are called by the compiled program. They
fill in their results and never raise, since that would discard all progress.
"""

import abc
import contextlib
import itertools
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ._base import no_devices


class Began(NamedTuple):
    """First states of episodes, one in each row.

    - `observation`: as `EnvSpec` specifies.
    - `descriptor`: the descriptor of the state; `None` if there is none.
    - `critic_observation`: likewise.
    """

    observation: Shaped[np.ndarray, "rows obs"]
    descriptor: Float[np.ndarray, "rows descriptor"] | None
    critic_observation: Shaped[np.ndarray, "rows critic_obs"] | None = None


class Stepped(NamedTuple):
    """Results of a step, one in each row.

    - `observation`, `descriptor`, `critic_observation`: those of the state reached,
        even if an episode ends there.
    - `reward`: the reward of the step.
    - `terminated`, `truncated`: how the episode ended, if it did.
    """

    observation: Shaped[np.ndarray, "rows obs"]
    reward: Float[np.ndarray, " rows"]
    terminated: Bool[np.ndarray, " rows"]
    truncated: Bool[np.ndarray, " rows"]
    descriptor: Float[np.ndarray, "rows descriptor"] | None
    critic_observation: Shaped[np.ndarray, "rows critic_obs"] | None = None


def _begun(began: Began) -> Stepped:
    """The beginning of episodes, as the result of a step."""
    size = len(began.observation)
    observation, *described = began
    no = np.zeros(size, bool)
    return Stepped(observation, np.zeros(size), no, no.copy(), *described)


class AbstractSimulators(abc.ABC):
    """Simulators that are stepped together, in NumPy.

    They never reset themselves. An error that they raise ends training.
    """

    @abc.abstractmethod
    def begin(self, rows: Int[np.ndarray, " rows"]) -> Began:
        """Begins an episode in some of the simulators, and leaves all others alone."""

    @abc.abstractmethod
    def step(
        self, rows: Int[np.ndarray, " rows"], actions: Shaped[np.ndarray, "rows ..."]
    ) -> Stepped:
        """Advances some of the simulators, whose episodes are not over, by one step."""

    @abc.abstractmethod
    def picture(self, row: int) -> np.ndarray:
        """An image of a simulator's present, in red, green and blue."""

    @abc.abstractmethod
    def save(self, row: int) -> bytes | None:
        """The whole state of a simulator; `None` if it cannot be saved."""

    @abc.abstractmethod
    def restore(self, row: int, saved: bytes) -> bool:
        """Takes a simulator back to a state that was saved.

        False if that is a state of another kind of simulator.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the simulators, with their processes and threads."""


MakeSimulators = Callable[[Sequence[int]], AbstractSimulators]
"""Makes a simulator for each seed. Equal ones share compilations, so it is hashable."""


class SimulatorFailure(NamedTuple):
    """A failure of a simulator.

    - `error`: the error that it raised, or one that describes how its result is wrong.
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
    """A simulator outside the compiled program raised an error or returned `nan`.

    An error that it raised is the cause of this one.

    **Attributes:**

    - `failure`: what failed, and where.
    - `solution`: the result of training until then; `None` outside of training.
    - `row`: which environment, from 0; `None` if it is not known.
    - `episode_step`: how many steps of its episode it had taken; `None` likewise, as in
        an episode that began before the solution was saved.
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
                f"{message}\nTraining had taken {step} environment steps; the "
                "`solution` of this error holds the result so far."
            )
        super().__init__(message)
        self.failure = failure
        self.solution = solution
        self.row: int | None = failure.row
        self.episode_step: int | None = failure.step


class RowError(Exception):
    """Names the row in which its cause, another error, happened."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


Arrays = list[np.ndarray]


class Group:
    """Simulators that were made together, and the present of each."""

    def __init__(
        self, simulators: AbstractSimulators, owner: int, size: int, began: Began
    ) -> None:
        self.simulators = simulators
        self.owner = owner
        self.all_rows = np.arange(size, dtype=np.int32).tobytes()
        # How often each was stepped or begun: the number of its present.
        self.ticks = np.zeros(size, np.int32)
        # The ticks at which its episode began.
        self.first_ticks = np.zeros(size, np.int32)
        # The results of the last call of each.
        self.last = _begun(began)
        self.any_over = False
        self.failed = False
        self.closed = False
        self.released = np.zeros(size, bool)

    def close(self) -> None:
        """Closes the simulators, once."""
        if not self.closed:
            self.closed = True
            with contextlib.suppress(BaseException):
                self.simulators.close()

    def put(self, rows: Int[np.ndarray, " rows"], results: Stepped) -> None:
        """Records the results of a call of some simulators."""
        given, due = results.observation.shape, self.last.observation.shape[1:]
        if given != (len(rows), *due):
            raise ValueError(
                f"{len(rows)} observations have the shape {given}, but each must have "
                f"{due}"
            )
        if rows.tobytes() == self.all_rows:
            self.last = results
            self.ticks += 1
        else:
            self.ticks[rows] += 1
            # Copies, since the results may be the simulators' own arrays.
            last = {
                name: np.array(old)
                for name, old in self.last._asdict().items()
                if old is not None
            }
            for name, old in last.items():
                old[rows] = getattr(results, name)
            self.last = self.last._replace(**last)
        over = self.last.terminated.tobytes() + self.last.truncated.tobytes()
        self.any_over = 1 in over


# By number. Numbers are never reused, and a process begins with a random one, so that
# the number in a checkpoint is not mistaken for a live one.
GROUPS: dict[int, Group] = {}
FAILURES: dict[int, SimulatorFailure] = {}
# Images of groups of one simulator that is drawn, by its ticks.
PICTURES: dict[int, dict[int, np.ndarray]] = {}
NUMBERS = itertools.count(secrets.randbelow(2**30) + 1)
OWNERS = itertools.count(1)
LOCK = threading.Lock()


def close_groups(owner: int) -> None:
    """Closes the remaining simulators of an environment."""
    with LOCK:
        numbers = [n for n, group in GROUPS.items() if group.owner == owner]
        groups = [GROUPS.pop(number) for number in numbers]
    for group in groups:
        group.close()


def make_rows(make: MakeSimulators, arguments: Arrays, results: Arrays) -> None:
    """Makes simulators and begins an episode in each."""
    owners, seeds = arguments
    groups, rows, *seen = results
    owner, number = int(owners[0]), next(NUMBERS)
    groups[:], rows[:] = number, np.arange(len(seeds))
    simulators = None
    try:
        simulators = make([int(seed) for seed in seeds])
        began = simulators.begin(rows)
        group = Group(simulators, owner, len(seeds), began)
        _check_finite(rows, group.last)
        given = [each for each in began if each is not None]
        for each, value in zip(seen, given, strict=True):
            each[:] = value
    except BaseException as error:
        _fail(owner, error)
        _fill(seen, slice(None))
        if simulators is not None:
            with contextlib.suppress(Exception):
                simulators.close()
        return
    with LOCK:
        GROUPS[number] = group


def answer(function: Callable[..., None], arguments: Arrays, results: Arrays) -> None:
    """Calls a function with a group, its rows and their arguments.

    The results are the presents of the simulators and their last results. They are
    `nan` for a simulator that has failed, or that is in another present, as those of a
    member of a population that has failed.
    """
    groups, rows, ticks, *given = arguments
    number = int(groups[0])
    group = GROUPS.get(number)
    # It is nearly always a whole group. Comparing bytes is fast, while each operation
    # of NumPy takes a microsecond.
    if group is not None and rows.tobytes() == group.all_rows:
        if groups.tobytes() == groups[:1].tobytes() * len(groups):
            _answer_of_group(function, group, slice(None), rows, ticks, given, results)
            return
    for number in np.unique(groups):
        chosen = np.flatnonzero(groups == number)
        group = GROUPS.get(int(number))
        parts = [each[chosen] for each in given]
        of = rows[chosen]
        _answer_of_group(function, group, chosen, of, ticks[chosen], parts, results)


def _answer_of_group(
    function: Callable[..., None],
    group: Group | None,
    chosen: Int[np.ndarray, " chosen"] | slice,
    rows: Int[np.ndarray, " chosen"],
    ticks: Int[np.ndarray, " chosen"],
    given: Arrays,
    results: Arrays,
) -> None:
    """Answers for one group, whose results are those that are `chosen`."""
    is_whole = isinstance(chosen, slice)
    if group is not None and not group.failed:
        presents = group.ticks if is_whole else group.ticks[rows]
        if presents.tobytes() == ticks.tobytes():
            try:
                if not is_whole and len(np.unique(rows)) < len(rows):
                    raise ValueError("one state was stepped twice at the same time")
                function(group, rows, *given)
                answers = [x for x in (group.ticks, *group.last) if x is not None]
                for result, answer in zip(results, answers, strict=True):
                    result[chosen] = answer if is_whole else answer[rows]
                return
            except BaseException as error:
                _end_group(group, error)
        elif np.any(present := presents == ticks):
            places = np.arange(len(rows)) if is_whole else chosen
            _fill(results, places[~present])
            at, parts = places[present], [each[present] for each in given]
            _answer_of_group(
                function, group, at, rows[present], ticks[present], parts, results
            )
            return
    _fill(results, chosen)


def _end_group(group: Group, error: BaseException) -> None:
    """Records a failure, and closes simulators that are not stepped again."""
    group.failed = True
    _fail(group.owner, error, group.ticks - group.first_ticks)
    group.close()


def _fill(
    results: Iterable[np.ndarray], chosen: Int[np.ndarray, " chosen"] | slice
) -> None:
    """Sets missing results to `nan`, or to 0 if they are not floats."""
    for result in results:
        result[chosen] = np.nan if result.dtype.kind == "f" else 0


def step_rows(
    group: Group,
    rows: Int[np.ndarray, " rows"],
    actions: Shaped[np.ndarray, "rows ..."],
    active: Bool[np.ndarray, " rows"] | None = None,
) -> None:
    """Steps the simulators that are active, or all, and not over."""
    # A copy in any case: a simulator may write into its actions, which are XLA's.
    if not group.any_over and (active is None or active.all()):
        actions = actions.copy()
    else:
        moving = ~(group.last.terminated | group.last.truncated)[rows]
        if active is not None:
            moving &= active
        rows, actions = rows[moving], actions[moving]
        if len(rows) == 0:
            return
    if not _is_finite(actions):
        # That is the agent's fault, which training detects by itself. Other agents may
        # act in the other rows.
        finite = np.isfinite(actions.reshape(len(rows), -1)).all(axis=-1)
        group.last.reward[rows[~finite]] = np.nan
        rows, actions = rows[finite], actions[finite]
        if len(rows) == 0:
            return
    stepped = group.simulators.step(rows, actions)
    group.put(rows, stepped)
    _check_finite(rows, stepped)


def _check_finite(rows: Int[np.ndarray, " rows"], results: Stepped) -> None:
    others = (results.critic_observation, results.descriptor)
    given = [results.reward, results.observation, *(x for x in others if x is not None)]
    if not all(map(_is_finite, given)):
        finite = np.ones(len(rows), bool)
        for each in given:
            finite &= np.isfinite(each.reshape(len(rows), -1)).all(axis=-1)
        wrong = ValueError(
            "it gave an observation, a descriptor or a reward that is nan or infinite"
        )
        raise RowError(int(rows[np.argmin(finite)])) from wrong


def _is_finite(values: Shaped[np.ndarray, "..."]) -> bool:
    """Whether all values are finite, or not floats."""
    if values.dtype.kind != "f":
        return True
    # The quickest test, but squares of large numbers may be infinite, too.
    return math.isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


def begin_rows(
    group: Group, rows: Int[np.ndarray, " rows"], over: Bool[np.ndarray, " rows"]
) -> None:
    """Begins an episode in the simulators whose last one is over."""
    rows = rows[over]
    if len(rows) == 0:
        return
    begun = _begun(group.simulators.begin(rows))
    group.put(rows, begun)
    group.first_ticks[rows] = group.ticks[rows]
    _check_finite(rows, begun)


def photograph_rows(arguments: Arrays, results: Arrays) -> None:
    """Keeps an image of each present, once."""
    results[0][:] = arguments[2]
    for number, row, tick in zip(*(each.tolist() for each in arguments), strict=True):
        group, taken = GROUPS.get(number), PICTURES.setdefault(number, {})
        if group is None or group.failed or tick in taken:
            continue
        try:
            with no_devices():
                taken[tick] = group.simulators.picture(row)
        except BaseException as error:
            wrong = RowError(row)
            wrong.__cause__ = error
            _end_group(group, wrong)


def release_rows(arguments: Arrays, results: Arrays) -> None:
    """Closes the groups that have no other simulators in use."""
    results[0].fill(True)
    numbers, rows, _ = arguments
    for number in np.unique(numbers).tolist():
        with LOCK:
            group = GROUPS.get(number)
            if group is None:
                continue
            group.released[rows[numbers == number]] = True
            if not group.released.all():
                continue
            del GROUPS[number]
        group.close()


def _fail(
    owner: int, error: BaseException, steps: Int[np.ndarray, " all"] | None = None
) -> None:
    """Records the first failure in the simulators of an environment."""
    row = None
    if isinstance(error, RowError):
        row, error = error.row, error.__cause__ or error
    step = None if row is None or steps is None else int(steps[row])
    step = None if step is None or step < 0 else step
    with LOCK:
        FAILURES.setdefault(owner, SimulatorFailure(error, row, step))
