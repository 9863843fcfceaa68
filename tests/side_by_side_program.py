"""Jobs of test_side_by_side.py: they sleep and write down what happens to them.

As a program: two endless ones, or with `apart` one in a process of its own, as `nofe reproduce` measures in.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from nofe.errors import NofeError, RunError
from nofe.side_by_side import run_side_by_side


@dataclass(frozen=True)
class Sleeping:
    name: str
    folder: Path
    stage: str = ""
    lasts: float = 0.2
    expected: float = 0.0
    leaves_room: bool = True
    until: str = ""  # another has begun; at the latest as long as it lasts

    def keys(self) -> set[str]:
        return {self.stage or self.name}

    def seconds(self, trained: set[str]) -> float:
        return self.expected


def sleep(job: Sleeping) -> None:
    """As a training does, it ends early and well when it is told to."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    note(job, f"begun {os.getpid()}")
    end = time.monotonic() + job.lasts
    while time.monotonic() < end and not told and not (job.until and has_begun(job.until, job.folder)):
        time.sleep(0.02)
    note(job, "stopped" if told else "ended")
    signal.signal(signal.SIGTERM, before)
    if told:
        raise RunError(f"{job.name}: told to stop")


def has_begun(name: str, folder: Path) -> bool:
    notes = [line.split() for line in (folder / "notes").read_text().splitlines()]
    return any(note[0] == "begun" and note[-1] == name for note in notes)


def note(job: Sleeping, what: str) -> None:
    with (job.folder / "notes").open("a") as file:
        file.write(f"{what} {job.name}\n")


def sleep_as_python_does(job: Sleeping) -> None:
    note(job, f"begun {os.getpid()}")
    time.sleep(job.lasts)


if __name__ == "__main__":
    if sys.argv[2:] == ["apart"]:
        from nofe.experiments.reproduce import _apart  # which loads torch: no other job waits for it

        _apart(60, sleep_as_python_does, Sleeping("one", Path(sys.argv[1]), lasts=60))
        sys.exit()
    endless = [Sleeping(name, Path(sys.argv[1]), lasts=60) for name in ("one", "two")]
    try:
        run_side_by_side(endless, sleep, at_once=2)
    except NofeError as error:
        sys.exit(error.exit_code)
