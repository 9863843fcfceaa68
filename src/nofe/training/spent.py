"""Where the time of a run went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spent:
    """Seconds by what they were spent on. Of a run that was interrupted, those since then."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - began, 1)

    def in_words(self) -> str:
        parts = [f"{what} {seconds:,.0f}" for what, seconds in self.seconds.items() if seconds >= 1]
        return f"It took {sum(self.seconds.values()):,.0f} s" + (f": {', '.join(parts)}" if parts else "")
