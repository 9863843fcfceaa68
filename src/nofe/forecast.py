"""When jobs that share a device are likely to end: how many of them can begin before the device is gone."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# Before any job has ended, n of them side by side are taken to last n ** this times as long as one alone: on an H200
# three took 2.3 times as long (ResNet56-C100, NIN-C100), eight 4.5 to 4.8 times (AlexNet-C100, VGG11-C100).
SLOWER_BESIDE_OTHERS = 0.75
# A factor on estimates where checkpoints will be gone: they are off by some per cent, and who stops begins anew.
TIME_TO_SPARE = 1.1


@dataclass(frozen=True)
class Ends:
    """When jobs have to stop, and when their checkpoints are gone: by the monotonic clock, infinite for never."""

    stop: float
    gone: float

    @classmethod
    def after(cls, minutes: float | None, gone_in: float | None) -> "Ends":
        now = time.monotonic()
        stop, gone = (math.inf if given is None else now + 60 * given for given in (minutes, gone_in))
        return cls(min(stop, gone), gone)

    @property
    def left(self) -> "Left":
        now = time.monotonic()
        return Left(self.stop - now, self.gone - now)


@dataclass(frozen=True)
class Left:
    """Seconds."""

    to_stop: float
    to_gone: float


def beside_others(count: int, *, leave_room: bool = True, share: float = 100.0) -> float:
    """How many times as long as alone a job takes beside others, `count` in all, with a share of the device for each.

    Limited to a quarter of it, a job is no faster than one of four, even when it is the last.
    """
    power = SLOWER_BESIDE_OTHERS if leave_room else 1.0
    return float(max(count, 100 / share) ** power)


@dataclass
class Forecast:
    """When jobs side by side end. What each was to take, and has taken, is in seconds of a job alone on the device."""

    share: float = 100.0  # per cent of the device that each may use
    expected: dict[str, float] = field(default_factory=dict)
    passed: dict[str, float] = field(default_factory=dict)
    leave_no_room: set[str] = field(default_factory=set)
    ratios: list[float] = field(default_factory=list)  # of what jobs took to what was expected
    now: float = field(default_factory=time.monotonic)

    def begin(self, name: str, seconds: float, *, leaves_room: bool = True) -> None:
        self._go_on()
        self.expected[name], self.passed[name] = seconds, 0.0
        if not leaves_room:
            self.leave_no_room.add(name)

    def end(self, name: str, *, well: bool) -> None:
        self._go_on()
        self.leave_no_room.discard(name)
        expected, took = self.expected.pop(name), self.passed.pop(name)
        if expected and well:
            self.ratios.append(took / expected)

    @property
    def slower(self) -> float:
        """Times as slow as expected, 1 or more: a job that found its stages trained was quick, which says nothing."""
        return max(1.0, statistics.median(self.ratios or [1.0]))

    def seconds_with(self, another: float, *, leaves_room: bool = True) -> float:
        """Until those under way and another have ended; the more are left side by side, the slower each is."""
        self._go_on()
        under_way = [
            (self.slower * self.expected[name] - self.passed[name], name not in self.leave_no_room)
            for name in self.expected
        ]
        alone = sorted((max(0.0, left), room) for left, room in (*under_way, (self.slower * another, leaves_room)))
        until_each = pairwise([0.0, *(seconds for seconds, _ in alone)])
        rooms = [room for _, room in alone]
        return sum((end - begin) * self._times(rooms[place:]) for place, (begin, end) in enumerate(until_each))

    def _times(self, rooms: Sequence[bool]) -> float:
        return beside_others(len(rooms), leave_room=all(rooms), share=self.share)

    def _go_on(self) -> None:
        since, self.now = self.now, time.monotonic()
        times = self._times([name not in self.leave_no_room for name in self.passed])
        for name in self.passed:
            self.passed[name] += (self.now - since) / times
