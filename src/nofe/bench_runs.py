"""Several trainings on one device at the same time: what a step of one costs when they share it.

Each is a process, as in `nofe reproduce`. They start together when all are ready, and each counts the steps that it
takes in the same few seconds.
"""

import multiprocessing
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nofe.bench import Case, cases, prepare
from nofe.errors import RunError, UserError
from nofe.training.launch import MODES, in_mode, milliseconds
from nofe.training.runtime import environment, make_runtime, sharing_the_gpu

AN_EPOCH = 50_000  # images, as of CIFAR-100
SECONDS_TO_GET_READY = 300.0  # compiling, choosing kernels, capturing


@dataclass(frozen=True)
class Choices:
    """Of the device; every process makes its own runtime of them."""

    device: str = "auto"
    precision: str = "auto"
    kernels: str = "together"  # measuring would be disturbed by the others


def measure_runs(
    architecture: str,
    networks: Sequence[str],
    mode: str | None,
    experts: int,
    batch: int,
    at_once: Sequence[int],
    choices: Choices,
    seconds: float = 3.0,
) -> dict[str, Any]:
    """Milliseconds of a step, and seconds of an epoch, that each of so many trainings costs the device."""
    if min(at_once) < 1:
        raise UserError(f"--at-once {min(at_once)}: no run at all; choose 1 or more")
    runtime = make_runtime(choices.device, choices.precision)
    mode = mode or (MODES[-1] if runtime.device.type == "cuda" else MODES[0])
    in_mode(runtime, mode)  # or an error, before any process starts
    rows = []
    for case in cases(networks, [mode], ["train"], [experts], [100], [batch]):
        for count in at_once:
            steps_a_second = _together(architecture, case, count, choices, seconds)
            ms = 1000 / sum(steps_a_second)
            rows.append(
                {
                    "case": asdict(case),
                    "at_once": count,
                    "milliseconds_a_step": round(ms, 4),
                    "seconds_an_epoch": round(ms / 1000 * (AN_EPOCH // batch), 4),
                    "slowest_to_fastest": round(min(steps_a_second) / max(steps_a_second), 3),
                }
            )
    return {"architecture": architecture, "environment": environment(runtime, seed=0), "runs": rows}


def runs_in_words(measured: dict[str, Any]) -> str:
    lines = [f"{measured['architecture']}, {measured['environment']['device']}: what one of several trainings costs"]
    for row in measured["runs"]:
        lines.append(
            f"{row['case']['network']:>6} {row['case']['mode']}, {row['at_once']:>2} at once: "
            f"{row['milliseconds_a_step']:8.3f} ms a step, {row['seconds_an_epoch']:7.3f} s an epoch each"
        )
    return "\n".join(lines)


def _together(architecture: str, case: Case, count: int, choices: Choices, seconds: float) -> list[float]:
    """Steps a second of each."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    reports: Any = context.Queue()
    start = context.Barrier(count)
    with sharing_the_gpu():
        processes = [
            context.Process(target=_work, args=(architecture, case, choices, seconds, start, reports), daemon=True)
            for _ in range(count)
        ]
        for process in processes:
            process.start()
        try:
            found = [reports.get(timeout=SECONDS_TO_GET_READY + 10 * seconds) for _ in processes]
        except queue.Empty as error:
            raise RunError(f"bench runs: not all of {count} runs were ready in time; try fewer at once") from error
        finally:
            for process in processes:
                process.join(timeout=10)
                process.kill()
    if failed := sorted({report for report in found if isinstance(report, str)}, key=len, reverse=True):
        raise RunError(f"bench runs: {failed[0]}")
    return list(found)


def _work(architecture: str, case: Case, choices: Choices, seconds: float, start: Any, reports: Any) -> None:
    try:
        runtime = in_mode(make_runtime(choices.device, choices.precision, kernels=choices.kernels), case.mode)
        launch = prepare(architecture, case, runtime)
        at_a_time = max(1, int(50 / milliseconds(launch, 5, runtime)))  # about 50 ms alone
        start.wait(timeout=SECONDS_TO_GET_READY)
        began = time.perf_counter()
        steps = 0
        while (taken := time.perf_counter() - began) < seconds:
            milliseconds(launch, at_a_time, runtime)
            steps += at_a_time
        reports.put(steps / taken)
    except threading.BrokenBarrierError:
        reports.put("")  # another says why
    except Exception as error:
        start.abort()
        reports.put(f"{type(error).__name__}: {error}")
