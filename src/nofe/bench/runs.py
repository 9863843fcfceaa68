"""Several trainings on one device at the same time: what a step of one costs when they share it.

Each is a process, as in `nofe reproduce`. For each case they begin together and count the steps that they take in the
same few seconds.
"""

import multiprocessing
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nofe.bench.cases import Case, cases
from nofe.bench.steps import prepare
from nofe.errors import RunError, UserError
from nofe.training.launch import MODES, in_mode, milliseconds
from nofe.training.runtime import (
    environment,
    is_on_cuda,
    make_runtime,
    require_right_share,
    share_of_each,
    sharing_the_gpu,
)

AN_EPOCH = 50_000  # images, as of CIFAR-100
SECONDS_TO_GET_READY = 300.0  # importing, compiling, capturing


@dataclass(frozen=True)
class ProcessOptions:
    """Of which every process makes a runtime of its own."""

    device: str = "auto"
    precision: str = "auto"
    kernels: str = "together"  # measuring would be disturbed by the others


@dataclass(frozen=True)
class _Program:
    """What every process goes through, in the same order."""

    architecture: str
    cases: list[Case]
    at_once: int
    seconds: float
    options: ProcessOptions


def measure_runs(
    architecture: str,
    networks: Sequence[str],
    mode: str | None,
    experts: int,
    batch: int,
    at_once: Sequence[int],
    options: ProcessOptions,
    seconds: float = 3.0,
    shares: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Milliseconds of a step, and seconds of an epoch, that each of so many trainings costs the device.

    `shares` are percentages of the GPU that each may use at most, tried in turn.
    """
    if min(at_once) < 1:
        raise UserError(f"--at-once {min(at_once)}: no run at all; choose 1 or more")
    for share in shares or []:
        require_right_share(options.precision, share, "--share ")
    mode = mode or (MODES[-1] if is_on_cuda(options.device) else MODES[0])
    chosen = cases(networks, [mode], ["train"], [experts], [100], [batch])
    rows: list[dict[str, Any]] = []
    where: dict[str, Any] = {}
    for count, share in ((each, share) for each in at_once for share in shares or [share_of_each(each)]):
        with sharing_the_gpu(count, share):
            found, where = _together(_Program(architecture, chosen, count, seconds, options))
        for case, steps_a_second in found.items():
            ms = 1000 / sum(steps_a_second)
            rows.append(
                {
                    "case": asdict(case),
                    "at_once": count,
                    "share_of_each": share,
                    "milliseconds_a_step": round(ms, 4),
                    "seconds_an_epoch": round(ms / 1000 * (AN_EPOCH // batch), 4),
                    "slowest_to_fastest": round(min(steps_a_second) / max(steps_a_second), 3),
                }
            )
    return {"architecture": architecture, "environment": where, "runs": rows}


def _together(program: _Program) -> tuple[dict[Case, list[float]], dict[str, Any]]:
    """Steps a second of each, and where that was. This process itself leaves the device alone."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    reports: Any = context.Queue()
    start = context.Barrier(program.at_once)
    found: dict[Case, list[float]] = {case: [] for case in program.cases}
    processes = [
        context.Process(target=_work, args=(number, program, start, reports), daemon=True)
        for number in range(program.at_once)
    ]
    for process in processes:
        process.start()
    try:
        where: dict[str, Any] = _next(reports)
        for _ in range(program.at_once * len(found)):
            case, rate = _next(reports)
            found[case].append(rate)
    except queue.Empty as error:
        raise RunError(f"bench runs: {program.at_once} runs were not ready in time; try fewer at once") from error
    finally:
        for process in processes:
            process.kill()
            process.join()
    return found, where


def _next(reports: Any) -> Any:
    report = reports.get(timeout=SECONDS_TO_GET_READY)
    if isinstance(report, UserError):  # all processes would report the same
        raise report
    if isinstance(report, str):
        raise RunError(f"bench runs: {report}")
    return report


def _work(number: int, program: _Program, start: Any, reports: Any) -> None:
    options = program.options
    try:
        made = make_runtime(options.device, options.precision, kernels=options.kernels)
        if number == 0:
            reports.put(environment(made, seed=0))
        for case in program.cases:
            runtime = in_mode(made, case.mode)
            launch = prepare(program.architecture, case, runtime)
            at_a_time = max(1, int(50 / milliseconds(launch, 5, runtime)))  # about 50 ms alone
            start.wait(timeout=SECONDS_TO_GET_READY)
            steps, began = 0, time.perf_counter()
            while (taken := time.perf_counter() - began) < program.seconds:
                milliseconds(launch, at_a_time, runtime)
                steps += at_a_time
            reports.put((case, steps / taken))
        start.wait(timeout=SECONDS_TO_GET_READY)  # none leaves, and gives its share back, while another is counting
    except threading.BrokenBarrierError:
        pass  # another process has failed, and reports why
    except Exception as error:
        reports.put(UserError(str(error)) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        start.abort()
