"""SIGTERM and SIGINT, which ask a program to end, handled otherwise for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_signals_to_end(handle: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` with the number of such a signal. In another thread than the main one, which may not, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda came, _: handle(came)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
