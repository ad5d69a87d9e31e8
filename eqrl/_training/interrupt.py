import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupt:
    """Whether a signal asked training to stop, and which one was the first."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.held = False
        self.insisted = False

    def __call__(self) -> signal.Signals | None:
        """The first signal; `None` before there is one."""
        return self.first

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Takes note of a signal; raises `KeyboardInterrupt` at a second one."""
        del frame
        if self.first is None:
            self.first = signal.Signals(number)
        elif self.held:
            self.insisted = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """While what was reached is written, a second signal is only noted."""
        before, self.held = self.held, True
        try:
            yield
        finally:
            self.held = before


# Within `deferred_interrupt`, its own.
_outer: Interrupt | None = None


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Turns Ctrl-C into a flag, to be read at points where stopping loses nothing.

    So it does the signals that end a process of which a scheduler or a terminal has no
    more need, SIGTERM and SIGHUP. A second signal raises `KeyboardInterrupt` at once.
    Nothing changes outside the main thread, where no signal arrives, nor for a signal
    for which another handler is installed. Within another such block it is that one's
    flag.
    """
    global _outer
    if _outer is not None:
        yield _outer
        return
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    replaced = [number for number in _signals() if _is_untouched(number)]
    before = {number: signal.signal(number, interrupt.handle) for number in replaced}
    _outer = interrupt
    try:
        yield interrupt
    finally:
        _outer = None
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    # Not all systems have all of them.
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _is_untouched(number: signal.Signals) -> bool:
    return signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
