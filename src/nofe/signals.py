"""SIGTERM and SIGINT, which ask a program to end, handled otherwise for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nofe.errors import Interrupted

_handled = 0  # how many of the blocks below are entered


@contextmanager
def on_signals_to_end(handle: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` with the number of such a signal. In another thread than the main one, which may not, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _handled
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda came, _: handle(came)) for number in numbers}
    _handled += 1
    try:
        yield
    finally:
        _handled -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_at_once(what: str) -> Iterator[None]:
    """While there is nothing to save yet: end at once at a signal, where a run would finish its step first.

    Outside of `on_signals_to_end`, as in a program of the user's own, nothing changes.
    """
    if not _handled:
        yield
        return

    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        raise interrupted(number)

    def interrupted(number: int) -> Interrupted:
        return Interrupted(f"{what}: stopped by signal {number}, nothing is lost; run the same command again", number)

    with on_signals_to_end(end):
        yield
    if came:  # where Python drops what is raised, such as in the callback of a weak reference
        raise interrupted(came[0])
