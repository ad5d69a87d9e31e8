import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any


_lock = threading.Lock()
_num_open = 0
_new_event_loop = asyncio.new_event_loop


@contextlib.contextmanager
def quiet_event_loops() -> Iterator[None]:
    """Lets the event loops that Orbax makes, in any thread, end without a word.

    Where one of many reads or writes fails, Orbax closes its event loop while the
    others are under way, and each of them would write a traceback to the standard
    error. The one error that counts is raised.
    """
    global _num_open
    with _lock:
        _num_open += 1
        asyncio.new_event_loop = _make_loop
    try:
        yield
    finally:
        with _lock:
            _num_open -= 1
            if _num_open == 0:
                asyncio.new_event_loop = _new_event_loop


def _make_loop() -> asyncio.AbstractEventLoop:
    loop = _new_event_loop()
    if _is_called_by_orbax():
        # A loop that is not written in Python takes no attributes.
        with contextlib.suppress(AttributeError):
            loop.call_soon_threadsafe = _unless_closed(loop)  # pyright: ignore[reportAttributeAccessIssue]
        loop.set_exception_handler(lambda loop, context: None)
    return loop


def _is_called_by_orbax() -> bool:
    return any(
        str(frame.f_globals.get("__name__")).startswith("orbax.")
        for frame, _ in traceback.walk_stack(sys._getframe())
    )


def _unless_closed(loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    call = loop.call_soon_threadsafe

    def call_unless_closed(*args: Any, **options: Any) -> asyncio.Handle | None:
        try:
            return call(*args, **options)
        except RuntimeError:
            if not loop.is_closed():
                raise
            return None

    return call_unless_closed
