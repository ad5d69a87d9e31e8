import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


_lock = threading.Lock()
_quiet_threads: list[int] = []
_new_event_loop = asyncio.new_event_loop


@contextlib.contextmanager
def quiet_event_loops() -> Iterator[None]:
    """Lets the event loops that this thread makes end without a word.

    Where one of many reads fails, Orbax closes its event loop while the others are
    under way, and each of them would write a traceback to the standard error. The one
    error that counts is raised.
    """
    with _lock:
        _quiet_threads.append(threading.get_ident())
        asyncio.new_event_loop = _make_loop
    try:
        yield
    finally:
        with _lock:
            _quiet_threads.remove(threading.get_ident())
            if not _quiet_threads:
                asyncio.new_event_loop = _new_event_loop


def _make_loop() -> asyncio.AbstractEventLoop:
    loop = _new_event_loop()
    if threading.get_ident() in _quiet_threads:
        # A loop that is not written in Python takes no attributes.
        with contextlib.suppress(AttributeError):
            loop.call_soon_threadsafe = _unless_closed(loop)  # pyright: ignore[reportAttributeAccessIssue]
        loop.set_exception_handler(lambda loop, context: None)
    return loop


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
