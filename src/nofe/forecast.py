"""When jobs that share a device are likely to end: how many of them can begin before the device is gone."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# Until some have ended, n jobs side by side are taken to last n to this power times as long as one alone: on an H200
# three took 2.3 times as long (ResNet56-C100, NIN-C100), eight 4.5 to 4.8 times (AlexNet-C100, VGG11-C100).
SLOWER_BESIDE_OTHERS = 0.75
# Where checkpoints will be gone: estimates are off by some per cent, and a job that has to stop and go on begins anew.
TIME_TO_SPARE = 1.1


@dataclass(frozen=True)
class Ends:
    """By the monotonic clock, infinite for never: when jobs stop, and when what they leave behind is gone."""

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
    """How many times as long as alone so many take side by side, each on no more than a share of the device.

    On a quarter of it even the last one is no faster than one of four.
    """
    power = SLOWER_BESIDE_OTHERS if leave_room else 1.0
    return float(max(count, 100 / share) ** power)


@dataclass
class Forecast:
    """When jobs end beside each other; in seconds of a job alone on the device, what it was to take and has taken."""

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
        """Than expected. One that found its stages trained was quick: that says nothing of the others."""
        return max(1.0, statistics.median(self.ratios or [1.0]))

    def seconds_with(self, another: float, *, leaves_room: bool = True) -> float:
        """Until those under way and another have ended: side by side, the more slowly the more there are."""
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
