import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from eqrl._training.host_loop import deferred_interrupt


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Those of a fresh process, whatever the test's runner has set."""
    defaults = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, x) for number, x in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_interrupt_raises_at_once() -> None:
    with deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_handler_is_put_back() -> None:
    with deferred_interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(RuntimeError), deferred_interrupt():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_use_starts_with_the_flag_down() -> None:
    with deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
    with deferred_interrupt() as interrupted:
        assert not interrupted()


def test_somebody_elses_handler_is_left_alone() -> None:
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)

    signal.signal(signal.SIGINT, handler)
    with deferred_interrupt() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        assert not interrupted()
    assert signal.getsignal(signal.SIGINT) is handler


def test_it_does_nothing_outside_the_main_thread() -> None:
    flags: list[signal.Signals | None] = []

    def use() -> None:
        with deferred_interrupt() as interrupted:
            flags.append(interrupted())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert flags == [None]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_told(number: signal.Signals) -> None:
    with deferred_interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(number)
        assert interrupted() is number
        with pytest.raises(KeyboardInterrupt) as error:
            signal.raise_signal(signal.SIGTERM)
        assert interrupted() is number and error.value.args == (number,)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with deferred_interrupt() as interrupted:
        signal.raise_signal(signal.SIGHUP)
        assert interrupted() is None


def test_a_second_signal_waits_while_what_was_reached_is_written() -> None:
    with deferred_interrupt() as interrupted:
        with interrupted.hold():
            for _ in range(3):
                signal.raise_signal(signal.SIGTERM)
            assert interrupted.insisted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_within_another_it_is_the_same() -> None:
    with deferred_interrupt() as outer:
        with deferred_interrupt() as inner:
            signal.raise_signal(signal.SIGTERM)
            assert inner() is signal.SIGTERM
        assert outer() is signal.SIGTERM
        with deferred_interrupt() as next_one:
            assert next_one() is signal.SIGTERM
