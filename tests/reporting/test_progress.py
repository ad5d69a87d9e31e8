import contextlib
import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import eqrl
from eqrl._reporting import progress as _progress
from eqrl._reporting.progress import AbstractProgressBar
from eqrl._reporting.statistics import rounded
from tests.reporting.made import population


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    """Stands for `time`; the test says what time it is."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(_progress, "time", clock)
    return clock


@contextlib.contextmanager
def _shown(
    progress: AbstractProgressBar, file: io.StringIO | None = None
) -> Iterator[list[str]]:
    """The lines that a bar printed, empty until it is closed."""
    file = io.StringIO() if file is None else file
    lines: list[str] = []
    with contextlib.redirect_stdout(file), progress:
        yield lines
    lines.extend(file.getvalue().splitlines())


def _row(*returns: float) -> dict[str, np.ndarray]:
    return {"episode_return": np.squeeze(np.array(returns))}


def _lines(*rows: tuple[int, dict[str, np.ndarray]], total: int = 1000) -> list[str]:
    """What is printed, with no time between the rows."""
    progress = eqrl.ProgressBar(total, seconds_between_lines=0.0)
    with _shown(progress) as lines:
        for step, metrics in rows:
            progress(step, metrics, None)
    return lines


def test_says_that_it_compiles_until_the_first_row() -> None:
    assert _lines() == ["compiling"]


def test_shows_the_steps_and_the_total() -> None:
    assert "200/1,000 steps" in _lines((200, {}))[-1]


def test_shows_the_mean_over_seeds_of_the_return() -> None:
    assert "return 2.0" in _lines((200, _row(1.0, 3.0)))[-1]


def test_seeds_without_an_episode_do_not_count() -> None:
    assert "return 1.0" in _lines((200, _row(1.0, math.nan)))[-1]


def test_shows_the_latest_return_there_was() -> None:
    assert (
        "return 4.0" in _lines((1, _row(3.0)), (2, _row(4.0)), (3, _row(math.nan)))[-1]
    )


def test_shows_no_return_before_an_episode_has_ended() -> None:
    assert "return" not in _lines((200, _row(math.nan)))[-1]


def test_a_run_of_skills_shows_its_intrinsic_reward_and_no_return_of_zero() -> None:
    rows = [
        {"episode_return": np.array(given), "intrinsic_reward": np.array(rewards)}
        for given, rewards in (
            ([0.0, 0.0], [math.nan, math.nan]),
            ([0.0, math.nan], [1.0, 1.5]),
            ([3.0, 0.0], [math.nan, math.nan]),
            ([0.0, 0.0], [2.0, math.nan]),
        )
    ]
    lines = _lines(*((step, row) for step, row in enumerate(rows, 1)))[1:]
    texts = ("return 0.0", "return 1.5", "reward 1.25", "intrinsic reward 2.00")
    assert [[text for text in texts if text in line] for line in lines] == [
        [],
        ["reward 1.25"],
        ["return 1.5", "reward 1.25"],
        ["return 0.0", "intrinsic reward 2.00"],
    ]


def _last_line(clock: _Clock, *, until: float) -> str:
    """After 200 steps at 110 s and 600 at `until`, of 1000."""
    progress = eqrl.ProgressBar(1000, seconds_between_lines=0.0)
    with _shown(progress) as lines:
        clock.now = 110.0
        progress(200, {}, None)
        clock.now = until
        progress(600, {}, None)
    return lines[-1]


def test_rate_leaves_out_the_time_before_the_first_row(clock: _Clock) -> None:
    assert "100 steps/s" in _last_line(clock, until=114.0)


def test_time_left_follows_from_the_rate(clock: _Clock) -> None:
    assert "1:06:40 left" in _last_line(clock, until=4110.0)


def test_without_a_terminal_lines_are_apart(clock: _Clock) -> None:
    progress = eqrl.ProgressBar(1000, seconds_between_lines=10)
    with _shown(progress) as lines:
        for step in range(1, 31):
            clock.now += 1
            progress(step, {}, None)
    # At 0, 10 and 20 seconds after the first.
    assert [line.split("/")[0] for line in lines] == [
        "compiling",
        "1",
        "11",
        "21",
    ]


def test_without_a_terminal_the_last_row_is_printed_at_once(clock: _Clock) -> None:
    progress = eqrl.ProgressBar(2, seconds_between_lines=10)
    with _shown(progress) as lines:
        progress(1, {}, None)
        progress(2, {}, None)
    assert lines[-1].startswith("2/2 steps")


def test_the_return_of_the_latest_evaluation_stays() -> None:
    evaluated = {"evaluation_return": np.array([3.0, 5.0])}
    none = {"evaluation_return": np.full(2, math.nan)}
    lines = _lines((1, _row(1.0) | none), (2, _row(2.0) | evaluated), (3, none))
    shown = [line.partition("steps  ")[2] for line in lines[1:]]
    assert "evaluation" not in shown[0]
    assert all("return 2.0  evaluation 4.0" in line for line in shown[1:])


def test_a_terminal_shows_a_bar_that_compiles() -> None:
    progress = eqrl.ProgressBar(1000)
    with _shown(progress, _Terminal()) as lines:
        pass
    assert "compiling" in "".join(lines)


def test_a_terminal_may_show_ascii_alone() -> None:
    class Ascii(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    with contextlib.redirect_stdout(Ascii(io.BytesIO(), "ascii")):
        with eqrl.ProgressBar(1000) as progress:
            progress(200, _row(1.0), None)


def test_a_terminal_shows_a_bar_with_the_status() -> None:
    progress = eqrl.ProgressBar(1000)
    with _shown(progress, _Terminal()) as lines:
        progress(200, _row(1.0), None)
    assert "200/1,000 steps  return 1.0" in "\n".join(lines)


def test_the_bar_is_stopped_where_training_fails() -> None:
    progress = eqrl.ProgressBar(1000)
    with contextlib.redirect_stdout(_Terminal()):
        progress.__enter__()
        bar = progress._bar
        progress.__exit__(ValueError, ValueError(), None)
    assert not bar.live.is_started


def _population(
    returns: list[Any], scores: list[float] | None = None, *, generations: int = 4
) -> eqrl.PopulationSolution:
    """What a callback gets, as far as it is looked at."""
    scores = list(np.mean(returns, axis=1)) if scores is None else scores
    parents = np.zeros((generations, len(returns)), int)
    of_each = [np.array([x] * generations) for x in (returns, scores)]
    return population(of_each[0], parents, scores=of_each[1])


def _population_line(*returns: Any, scores: list[float] | None = None) -> str:
    progress = eqrl.PopulationProgressBar(10, 100)
    with _shown(progress) as lines:
        # An earlier call had generations of other lengths.
        progress(900, {}, _population(list(returns), scores))
    compiling, line = lines
    assert compiling == "compiling"
    return line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.96), "0.96"),
        (0.9996, "0.9996"),
        (0.99999, "1.0"),
        (2.65931, "2.659"),
        (-0.0, "0.0"),
        (-0.04, "-0.04"),
        (-9.99999, "-10.0"),
        (-1234.56, "-1234.6"),
        (-2e-7, "0.0"),
        (math.nan, "nan"),
    ],
)
def test_returns_near_zero_keep_their_digits(value: Any, text: str) -> None:
    assert rounded(value) == text


def test_a_population_shows_generations_mean_and_best() -> None:
    line = _population_line([1.0, 3.0], [4.0, 6.0])
    assert line == "generation 4/10  return 3.5 mean, 5.0 best"


def test_a_population_leaves_out_members_that_failed() -> None:
    line = _population_line([1.0, 3.0], [4.0, math.nan])
    assert line.endswith("return 2.0 mean, 2.0 best")


def test_a_population_shows_no_return_where_all_failed() -> None:
    assert _population_line([math.nan], [math.nan]) == "generation 4/10"


@pytest.mark.parametrize(
    "returns", [[[0.0, 0.0]] * 2, [[[1.0, 2.0]], [[3.0, 4.0]]]], ids=["none", "vectors"]
)
def test_a_population_shows_by_what_it_was_ranked(returns: list[Any]) -> None:
    line = _population_line(*returns, scores=[2.0, 5.0])
    assert line == "generation 4/10  score 3.5 mean, 5.0 best"


def test_a_population_shows_the_steps_of_all_members_and_the_time_left(
    clock: _Clock,
) -> None:
    progress = eqrl.PopulationProgressBar(10, 100, seconds_between_lines=0)
    with _shown(progress) as lines:
        clock.now = 150.0
        progress(100, {}, _population([[1.0], [2.0]], generations=1))
        clock.now = 152.0
        progress(200, {}, _population([[1.0], [2.0]], generations=2))
    line = lines[-1]
    assert line.startswith("generation 2/10  100 steps/s")
    assert line.endswith("0:00:16 left")


def test_a_population_has_a_bar_on_a_terminal() -> None:
    progress = eqrl.PopulationProgressBar(2, 100)
    with _shown(progress, _Terminal()) as lines:
        progress(200, {}, _population([[1.0]], generations=2))
    assert "generation 2/2" in "\n".join(lines)
