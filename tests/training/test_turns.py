"""Of several processes that compile the same one does: the others wait for it, and not for each other."""

import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from nofe.training import turns
from nofe.training.turns import alone_at_first, first_alone

SECONDS = 0.4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOFE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compile_it(what: str, fails: bool, begin: Barrier, spans: Any) -> None:
    begin.wait()
    with first_alone(what):
        began = time.monotonic()
        time.sleep(SECONDS)
        spans.append((began, time.monotonic()))
        if fails and len(spans) == 1:
            raise SystemExit(1)


def spans_of(whats: list[str], fails: bool = False) -> list[tuple[float, float]]:
    """When each of several processes was at it, the first to begin first."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager:
        spans: Any = manager.list()
        begin = spawn.Barrier(len(whats))
        processes = [spawn.Process(target=compile_it, args=(what, fails, begin, spans)) for what in whats]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return sorted(spans)


def test_the_first_is_alone_and_the_others_are_together() -> None:
    first, *others = spans_of(["alexnet"] * 4)
    assert all(began >= first[1] for began, _ in others)
    assert max(began for began, _ in others) < min(ended for _, ended in others), "not one after another"


def test_others_compile_meanwhile() -> None:
    (_, ended), (began, _) = spans_of(["alexnet", "nin"])
    assert began < ended


def test_after_one_that_failed_the_next_is_alone() -> None:
    first, second, *others = spans_of(["alexnet"] * 4, fails=True)
    assert second[0] >= first[1]
    assert all(began >= second[1] for began, _ in others)


@pytest.mark.timeout(20)  # for ever, if it were
def test_what_is_done_is_not_waited_for() -> None:
    with first_alone("alexnet"):
        pass
    with first_alone("alexnet"), first_alone("alexnet"):
        pass


@pytest.mark.timeout(20)  # for ever, if it were
def test_without_a_cache_nothing_is_waited_for(cache: Path) -> None:
    cache.write_text("a file where a folder should be")
    with first_alone("alexnet"), first_alone("alexnet"):
        pass


def test_only_the_first_step_is_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[str] = []
    real = turns.first_alone
    monkeypatch.setattr(turns, "first_alone", lambda what: came.append(what) or real(what))
    steps: list[int] = []
    step = alone_at_first(lambda: steps.append(1), "alexnet")
    for _ in range(3):
        step()
    assert (len(steps), came) == (3, ["alexnet"])
