"""Several trainings at a time on one device, each the job of a worker process.

Small networks leave a GPU idle, and processes share it well (`sharing_the_gpu`). A job that is stopped leaves a
checkpoint to go on from.
"""

import logging
import math
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from logging.handlers import QueueHandler
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, Protocol, TypeVar

from nofe.errors import Interrupted, NofeError, UserError
from nofe.forecast import TIME_TO_SPARE, Ends, Forecast, Left, beside_others
from nofe.signals import on_signals_to_end

AT_ONCE = 8  # on a GPU, where nobody says how many
SECONDS_TO_STOP = 60.0  # for a step and a checkpoint


class Job(Protocol):
    """One training. It goes to another process as it is, so it holds values alone."""

    @property
    def name(self) -> str: ...

    def keys(self) -> Set[str]:
        """Of the stages it trains: two jobs with the same stage do not train it at the same time."""
        ...

    def seconds(self, trained: Set[str]) -> float:
        """What it is likely to take when the stages of these keys are there."""
        ...

    @property
    def leaves_room(self) -> bool:
        """Whether others beside it are known to find the device idle at times; else they are taken to take turns."""
        ...


AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True)
class Outcome:
    """The names of the jobs that did not come to their end."""

    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # of those that failed: the input was wrong
    stopped: list[str] = field(default_factory=list)  # with a checkpoint
    not_begun: list[str] = field(default_factory=list)

    def in_words(self) -> str:
        """Nothing, if all is done."""
        kinds = {"failed": self.failed, "stopped": self.stopped, "not begun": self.not_begun}
        return "; ".join(f"{len(names)} {what} (first: {names[0]})" for what, names in kinds.items() if names)


def run_side_by_side(
    jobs: Sequence[AnyJob],
    work: Callable[[AnyJob], object],
    *,
    at_once: int,
    minutes: float | None = None,
    gone_in: float | None = None,
    trained: Set[str] = frozenset(),
    trained_by: Callable[[AnyJob], Set[str]] = lambda job: frozenset(),
    say: Callable[[str], None] = print,
) -> Outcome:
    """`work`, which must be a function that another process can import, on every job, so many at a time.

    After `minutes` jobs that are under way stop with a checkpoint, and nothing new is begun. A signal does the same,
    and is raised as Interrupted. Where checkpoints are `gone_in` so many minutes, with the machine, a job begins only
    if it and all that are under way are likely to end by then, though they may have to stop and go on before; and there
    are no more processes than can begin at once: the fewer they are, the larger is each one's share of the GPU. Stages
    of the keys in `trained` are there already; those that a job under way has finished so far are `trained_by` it, and
    whoever waits for one of them need not wait for the rest of that job.
    """
    from nofe.training.runtime import share_beside_others, sharing_the_gpu

    ends = Ends.after(minutes, gone_in)
    at_once = min(at_once, len(jobs))
    if gone_in is not None:
        at_once = _that_begin_at_once(jobs, at_once, trained, ends.left, share_beside_others)
    with _signals_as_exceptions(), sharing_the_gpu(at_once) if at_once > 1 else nullcontext():
        crew = _Crew(work, at_once, trained)
        try:
            return _run_all(list(jobs), crew, ends, Forecast(share_beside_others(at_once)), trained_by, say)
        finally:
            crew.dismiss()


def _run_all(
    waiting: list[AnyJob],
    crew: "_Crew[AnyJob]",
    ends: Ends,
    forecast: Forecast,
    trained_by: Callable[[AnyJob], Set[str]],
    say: Callable[[str], None],
) -> Outcome:
    began: dict[str, float] = {}
    failed: list[str] = []
    refused: list[str] = []
    count, finished = len(waiting), 0
    while (waiting or crew.at_work) and (left := ends.left).to_stop > 0:
        if waiting and crew.idle:
            crew.trained.update(*map(trained_by, crew.at_work.values()))
        while crew.idle and (job := _next(waiting, crew, left, forecast)) is not None:
            waiting.remove(job)
            began[job.name] = time.monotonic()
            forecast.begin(job.name, job.seconds(crew.trained), leaves_room=job.leaves_room)
            crew.give(job)
        if not crew.at_work:
            break  # no process is left to work, or there is no time for any job
        report = crew.wait(left.to_stop)
        if report is None:
            continue
        job, error, is_refused = report
        finished += 1
        forecast.end(job.name, well=not error)
        say(f"{finished}/{count} {job.name}: {error or f'done in {time.monotonic() - began[job.name]:.0f} s'}")
        if error:
            failed.append(job.name)
            refused.extend([job.name] if is_refused else [])
    return Outcome(failed, refused, [job.name for job in crew.at_work.values()], [job.name for job in waiting])


def _next(waiting: Sequence[AnyJob], crew: "_Crew[AnyJob]", left: Left, forecast: Forecast) -> AnyJob | None:
    """The first that shares no stage with one under way (it will find it trained), and that may end in the time left.

    If none may, the first that cannot: it goes on from its checkpoint the next time, and the device is not left idle.
    But where checkpoints will be gone the first beside which all may end before, whether now or the next time.
    """
    busy = set().union(*(job.keys() for job in crew.at_work.values())) - crew.trained
    free = [job for job in waiting if not job.keys() & busy]
    if left.to_gone < math.inf:
        return next((job for job in free if _all_end_with(job, crew.trained, left, forecast)), None)
    beside = {room: beside_others(crew.size, leave_room=room, share=forecast.share) for room in (True, False)}
    fitting = (
        job for job in free if forecast.slower * beside[job.leaves_room] * job.seconds(crew.trained) <= left.to_stop
    )
    return next(fitting, free[0] if free else None)


def _all_end_with(job: Job, trained: Set[str], left: Left, forecast: Forecast) -> bool:
    seconds = forecast.seconds_with(job.seconds(trained), leaves_room=job.leaves_room)
    return TIME_TO_SPARE * seconds <= left.to_gone


def _that_begin_at_once(
    jobs: Sequence[Job], at_most: int, trained: Set[str], left: Left, share_of: Callable[[int], float]
) -> int:
    """The largest number of processes, one at least, that all have a job from the beginning."""
    for size in range(at_most, 1, -1):
        forecast = Forecast(share_of(size))
        for job in jobs:
            if _all_end_with(job, trained, left, forecast):
                forecast.begin(job.name, job.seconds(trained), leaves_room=job.leaves_room)
        if len(forecast.expected) >= size:
            return size
    return min(at_most, 1)


class _Crew(Generic[AnyJob]):
    """Worker processes, each with one job at a time."""

    def __init__(self, work: Callable[[AnyJob], object], size: int, trained: Set[str]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self._reports: Any = context.Queue()
        self._jobs: list[Any] = [context.SimpleQueue() for _ in range(size)]
        self._processes: list[SpawnProcess] = [
            context.Process(target=_work, args=(number, jobs, self._reports, work), daemon=True)
            for number, jobs in enumerate(self._jobs)
        ]
        for process in self._processes:
            process.start()
        self.at_work: dict[int, AnyJob] = {}
        self.trained = set(trained)
        self.size = size

    @property
    def idle(self) -> list[int]:
        return [n for n, process in enumerate(self._processes) if n not in self.at_work and process.is_alive()]

    def give(self, job: AnyJob) -> None:
        number = self.idle[0]
        self.at_work[number] = job
        self._jobs[number].put(job)

    def wait(self, seconds: float) -> tuple[AnyJob, str | None, bool] | None:
        """The next job that ends, what went wrong, and whether the input did; None when none ends in the time."""
        try:
            report = self._reports.get(timeout=max(0.01, min(2.0, seconds)))
            if isinstance(report, logging.LogRecord):
                logging.getLogger(report.name).handle(report)
                return None
            number, error, is_refused = report
        except queue.Empty:
            number = next((n for n in self.at_work if not self._processes[n].is_alive()), None)
            if number is None:
                return None
            error, is_refused = f"its process ended with exit code {self._processes[number].exitcode}", False
        job = self.at_work.pop(number)
        if error is None:
            self.trained |= job.keys()
        return job, error, is_refused

    def dismiss(self) -> None:
        """Those at work stop after their step, with a checkpoint."""
        for number, process in enumerate(self._processes):
            self._jobs[number].put(None)
            if number in self.at_work:
                process.terminate()
        deadline = time.monotonic() + SECONDS_TO_STOP
        for process in self._processes:
            process.join(timeout=max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()


def _work(number: int, jobs: Any, reports: Any, work: Callable[[Any], object]) -> None:
    """A worker process: one job after another, until told that there is none."""
    logging.getLogger("nofe").addHandler(QueueHandler(reports))  # warnings are shown by the parent, as all others
    orphaned = end_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the keyboard: the parent tells each what to do
    while not orphaned.is_set() and (job := jobs.get()) is not None:
        try:
            work(job)
            reports.put((number, None, False))
        except NofeError as error:
            reports.put((number, str(error), isinstance(error, UserError)))
        except Exception as error:  # one bad run must not end the others
            reports.put((number, f"{type(error).__name__}: {error}", False))


def end_with_the_parent() -> threading.Event:
    """However it ends: a job under way saves itself as for any other SIGTERM, a process without one just ends."""
    orphaned = threading.Event()

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        orphaned.set()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
    return orphaned


def _signals_as_exceptions() -> AbstractContextManager[None]:
    """So that they end it by way of every `finally`."""

    def interrupt(number: int) -> None:
        raise Interrupted(f"stopped by signal {number}, all saved; run the command again to go on", number)

    return on_signals_to_end(interrupt)
