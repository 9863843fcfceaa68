"""Jobs side by side: none is lost, none outlives what started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nofe.side_by_side import Forecast, run_side_by_side
from side_by_side_program import Sleeping, sleep


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
    assert outcome.in_words() == "1 were stopped (first: long); 1 were not begun (first: longer)"


def test_how_long_jobs_take_is_learned_from_those_that_ended(tmp_path: Path) -> None:
    """Three times as long as alone is too long for the time that is left: what is shorter comes first."""
    first = Sleeping("first", tmp_path, lasts=3, expected=1)
    beside = Sleeping("beside", tmp_path, lasts=60, expected=1)
    long = Sleeping("long", tmp_path, lasts=60, expected=4)
    short = Sleeping("short", tmp_path, lasts=0.1, expected=1)
    outcome = run_side_by_side([first, beside, long, short], sleep, at_once=2, minutes=0.2)
    begun = [note[-1] for note in notes(tmp_path) if note[0] == "begun"]
    assert begun[2:] == ["short", "long"]
    assert sorted(outcome.stopped) == ["beside", "long"], "time is not left unused"


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
    """Of jobs that take 100 seconds alone two take 168 side by side, three 228, four 283, five 334."""
    jobs = [Sleeping(name, tmp_path, lasts=60, expected=100) for name in "abcd"]
    for minutes_left, begun in ((2, 1), (3.5, 2), (4.5, 3), (5, 4)):
        outcome = run_side_by_side(jobs, sleep, at_once=8, minutes=0.03, gone_in=minutes_left)
        assert (outcome.stopped, outcome.not_begun) == ([*"abcd"[:begun]], [*"abcd"[begun:]])


def test_where_the_machine_will_be_gone_nothing_is_begun_beside_which_others_would_be_lost(tmp_path: Path) -> None:
    """The first would end in time alone, and so would each of the others alone."""
    jobs = [
        Sleeping(name, tmp_path, lasts=60, expected=seconds) for name, seconds in zip("abc", (170, 100, 5), strict=True)
    ]
    outcome = run_side_by_side(jobs, sleep, at_once=3, minutes=0.03, gone_in=3)
    assert (outcome.stopped, outcome.not_begun) == (["a", "c"], ["b"])


def test_what_is_under_way_has_so_much_less_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 100 seconds take 168 side by side; once half of that is over, 50 of each are left."""
    clock = [1000.0]
    monkeypatch.setattr("nofe.side_by_side.time.monotonic", lambda: clock[0])
    forecast = Forecast()
    assert forecast.seconds_with(100) == pytest.approx(100)
    forecast.begin("one", 100)
    assert forecast.seconds_with(100) == pytest.approx(100 * 2**0.75)
    forecast.begin("other", 100)
    clock[0] += 50 * 2**0.75
    assert forecast.seconds_with(0) == pytest.approx(50 * 2**0.75)
    assert forecast.seconds_with(50) == pytest.approx(50 * 3**0.75)
    clock[0] += 100 * 2**0.75
    forecast.end("one", well=True)  # it took 150
    assert forecast.slower == pytest.approx(1.5)
    assert forecast.seconds_with(100) == pytest.approx(150), "the other is as late, and ends now"
    forecast.end("other", well=False)
    assert forecast.slower == pytest.approx(1.5), "what failed says nothing"


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
