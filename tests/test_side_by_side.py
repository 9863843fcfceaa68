"""Jobs side by side: none is lost, none outlives what started it."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nofe.forecast import Forecast, Left
from nofe.side_by_side import _next, _that_begin_at_once, run_side_by_side
from nofe.training.runtime import share_of_each
from side_by_side_program import Sleeping, has_begun, sleep


def notes(folder: Path) -> list[list[str]]:
    file = folder / "notes"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def test_jobs_with_a_stage_in_common_go_one_after_another(tmp_path: Path) -> None:
    jobs = [Sleeping("a1", tmp_path, "a"), Sleeping("a2", tmp_path, "a"), Sleeping("b", tmp_path)]
    said: list[str] = []
    outcome = run_side_by_side(jobs, sleep, at_once=2, say=said.append)
    assert outcome.in_words() == ""
    assert sorted(line.split()[1] for line in said) == ["a1:", "a2:", "b:"]
    of_a = [note[0] for note in notes(tmp_path) if note[-1].startswith("a")]
    assert of_a == ["begun", "ended", "begun", "ended"]


def test_who_waits_for_a_stage_does_not_wait_for_what_comes_after_it(tmp_path: Path) -> None:
    """Experts of another number have the same base: they begin when it is trained, and not when the run has ended."""
    jobs = [Sleeping("a1", tmp_path, "a", lasts=60, until="a2"), Sleeping("a2", tmp_path, "a")]

    def trained_by(job: Sleeping) -> set[str]:
        return {"a"} if job.name == "a1" and (tmp_path / "notes").exists() and has_begun("a1", tmp_path) else set()

    began = time.monotonic()
    assert run_side_by_side(jobs, sleep, at_once=2, trained_by=trained_by).in_words() == ""
    assert [note[0] for note in notes(tmp_path)][:2] == ["begun", "begun"]
    assert time.monotonic() - began < 60


def test_in_too_little_time_what_may_end_comes_first_and_the_rest_is_named(tmp_path: Path) -> None:
    long, longer = (Sleeping(name, tmp_path, lasts=60, expected=1000) for name in ("long", "longer"))
    short = Sleeping("short", tmp_path, expected=0.1)
    said: list[str] = []
    began = time.monotonic()
    outcome = run_side_by_side([long, longer, short], sleep, at_once=1, minutes=0.12, say=said.append)
    assert time.monotonic() - began < 30, "whoever is stopped is not waited for in vain"
    assert [line.partition(" in ")[0] for line in said] == ["1/3 short: done"]
    assert (outcome.stopped, outcome.not_begun) == (["long"], ["longer"]), "time is not left unused"
    assert [note[0] for note in notes(tmp_path)] == ["begun", "ended", "begun", "stopped"]
    assert outcome.in_words() == "1 stopped (first: long); 1 not begun (first: longer)"


def test_how_long_jobs_take_is_learned_from_those_that_ended(tmp_path: Path) -> None:
    """Three times as long as expected is too long for the time that is left: what is shorter comes first."""
    long, short = Sleeping("long", tmp_path, expected=4), Sleeping("short", tmp_path, expected=1)
    crew: Any = SimpleNamespace(at_work={}, trained=set(), size=2)
    left, forecast = Left(to_stop=8, to_gone=math.inf), Forecast()
    assert _next([long, short], crew, left, forecast) == long
    forecast.ratios.append(3.0)
    assert _next([long, short], crew, left, forecast) == short
    assert _next([long], crew, left, forecast) == long, "time is not left unused"


def test_where_the_machine_will_be_gone_nothing_is_begun_that_would_be_lost(tmp_path: Path) -> None:
    long = Sleeping("long", tmp_path, lasts=60, expected=1000)
    short = Sleeping("short", tmp_path, expected=100)
    began = time.monotonic()
    outcome = run_side_by_side([long, short], sleep, at_once=1, minutes=5, gone_in=5)
    assert time.monotonic() - began < 60, "nor waited for, nor begun because another was quicker than expected"
    assert (outcome.stopped, outcome.not_begun) == ([], ["long"])
    assert [note[-1] for note in notes(tmp_path)] == ["short", "short"]


def test_what_is_stopped_before_the_machine_is_gone_is_begun(tmp_path: Path) -> None:
    """The next command goes on with it."""
    outcome = run_side_by_side(
        [Sleeping("long", tmp_path, lasts=60, expected=100)], sleep, at_once=1, minutes=0.1, gone_in=5
    )
    assert outcome.stopped == ["long"]


def test_where_the_machine_will_be_gone_what_is_shorter_does_not_come_before_its_turn(tmp_path: Path) -> None:
    """The long one cannot end by now, but with the next command: put off until then it would be too late for it."""
    long, short = (Sleeping(name, tmp_path, lasts=60, expected=seconds) for name, seconds in (("long", 100), ("s", 1)))
    outcome = run_side_by_side([long, short], sleep, at_once=1, minutes=0.1, gone_in=5)
    assert (outcome.stopped, outcome.not_begun) == (["long"], ["s"])
    outcome = run_side_by_side([long, short], sleep, at_once=1, minutes=0.1)
    assert (outcome.stopped, outcome.not_begun) == (["s"], ["long"]), "where its checkpoint stays, it can wait"


def test_where_the_machine_will_be_gone_as_many_are_begun_as_all_end(tmp_path: Path) -> None:
    """Of jobs that take 100 seconds alone two take 168 side by side, three 228, four 283; a tenth is spared."""
    jobs = [Sleeping(name, tmp_path, lasts=60, expected=100) for name in "abcd"]
    for minutes_left, begun in ((1.8, 0), (2, 1), (3.5, 2), (5, 3), (5.4, 4)):
        outcome = run_side_by_side(jobs, sleep, at_once=8, minutes=0.03, gone_in=minutes_left)
        assert (outcome.stopped, outcome.not_begun) == ([*"abcd"[:begun]], [*"abcd"[begun:]])


def test_where_the_machine_will_be_gone_networks_that_fill_it_are_taken_to_take_turns(tmp_path: Path) -> None:
    """Four of 100 seconds take 400: three begin where four of others do."""
    jobs = [Sleeping(name, tmp_path, lasts=60, expected=100, leaves_room=False) for name in "abcd"]
    outcome = run_side_by_side(jobs, sleep, at_once=8, minutes=0.03, gone_in=5.6)
    assert (outcome.stopped, outcome.not_begun) == (["a", "b", "c"], ["d"])


def test_where_the_machine_will_be_gone_no_share_of_it_is_kept_for_jobs_that_cannot_begin(tmp_path: Path) -> None:
    """On a quarter of a GPU for each of eight, one that could have all of it would not end in time."""
    jobs = [Sleeping(name, tmp_path, expected=100) for name in "abcd"] + [Sleeping("e", tmp_path, expected=400)]

    def processes(minutes_left: float, at_most: int = 8, given: list[Sleeping] = jobs) -> int:
        left = Left(60 * minutes_left, 60 * minutes_left)
        return _that_begin_at_once(given, at_most, frozenset(), left, share_of_each)

    assert [processes(minutes) for minutes in (1, 2, 3.5, 5, 6, 60)] == [1, 1, 2, 3, 4, 5]
    assert processes(60, at_most=2) == 2
    assert processes(8, given=jobs[4:]) == 1


def test_where_the_machine_will_be_gone_nothing_is_begun_beside_which_others_would_be_lost(tmp_path: Path) -> None:
    """The first would end in time alone, and so would each of the others alone."""
    jobs = [
        Sleeping(name, tmp_path, lasts=60, expected=seconds) for name, seconds in zip("abc", (150, 100, 5), strict=True)
    ]
    outcome = run_side_by_side(jobs, sleep, at_once=3, minutes=0.03, gone_in=3)
    assert (outcome.stopped, outcome.not_begun) == (["a", "c"], ["b"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_job_outlives_what_started_it(number: signal.Signals, tmp_path: Path) -> None:
    program = Path(__file__).with_name("side_by_side_program.py")
    parent = subprocess.Popen([sys.executable, str(program), str(tmp_path)], stderr=subprocess.DEVNULL)
    wait_until(lambda: len(notes(tmp_path)) == 2)
    parent.send_signal(number)
    assert parent.wait(20) == (-number if number == signal.SIGKILL else 128 + number)
    workers = [int(note[1]) for note in notes(tmp_path) if note[0] == "begun"]
    wait_until(lambda: not any(is_running(worker) for worker in workers))
    assert [note[0] for note in notes(tmp_path)] == ["begun", "begun", "stopped", "stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_goes_on_measuring_for_a_command_that_was_stopped(number: signal.Signals, tmp_path: Path) -> None:
    program = Path(__file__).with_name("side_by_side_program.py")
    parent = subprocess.Popen([sys.executable, str(program), str(tmp_path), "apart"])
    wait_until(lambda: len(notes(tmp_path)) == 1)
    parent.send_signal(number)
    assert parent.wait(20) == -number
    [[_, process, _]] = notes(tmp_path)
    wait_until(lambda: not is_running(int(process)))


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
