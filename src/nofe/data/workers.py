"""Worker processes that read and decode images, in any number, with the same result.

A thread here waits for each process; a task is a handful of images, and its answer a future, so whoever asks in an
order gets the answers in that order. Processes are started as programs of their own, not forked: a fork would copy a
process that holds a GPU and threads, and a spawned one would run the user's script again.
"""

import json
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from multiprocessing import Pipe
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from nofe.data.pictures import Pictures, Source
from nofe.data.worker import PROGRESS_BYTES, Decode, Outcome, Work, shared_pixels
from nofe.errors import RunError, UserError

T = TypeVar("T")
TIMEOUT_SECONDS = 120.0  # without an image done
IMAGES_A_TASK = 16
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from nofe.data.worker import serve; serve(*map(int, sys.argv[2:]))"
)


class Workers:
    """`count` processes, started when they are first needed, and gone with this process at the latest."""

    def __init__(self, count: int = 0, image_size: int = 0, timeout: float = TIMEOUT_SECONDS) -> None:
        if count < 0:
            raise UserError(f"--workers {count}: out of range; use 1 or more, or 0 for one a core")
        self.count = count or cores()
        self._length = PROGRESS_BYTES + IMAGES_A_TASK * 3 * image_size**2
        self._timeout = timeout
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._every: list[_Worker] = []
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def ask(
        self,
        work: Work,
        pictures: Pictures,
        index: Sequence[int],
        take: Callable[[list[Outcome], "_Worker"], T],
    ) -> "Future[T]":
        """Have up to IMAGES_A_TASK images worked on; `take` gets the outcomes while the worker's memory stays as is."""
        if len(index) > IMAGES_A_TASK:
            raise ValueError("too many images for one task")
        with self._lock:
            if self._threads is None:
                self._every = [_Worker(self._length) for _ in range(self.count)]
                for worker in self._every:
                    self._idle.put(worker)
                self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="nofe-images")
        return self._threads.submit(self._run, work, pictures, list(index), take)

    def decode_into(self, pictures: Pictures, index: NDArray[np.int64], out: NDArray[np.uint8]) -> "Pending":
        """Images into the rows of `out` (N, 3, H, W), in the order of `index`."""
        work = Decode(out.shape[-1])
        futures = []
        for start in range(0, len(index), IMAGES_A_TASK):
            some = index[start : start + IMAGES_A_TASK].tolist()
            rows = out[start : start + len(some)]
            futures.append(self.ask(work, pictures, some, _copier(pictures, some, rows)))
        return Pending(futures)

    def _run(
        self, work: Work, pictures: Pictures, index: list[int], take: Callable[[list[Outcome], "_Worker"], T]
    ) -> T:
        worker = self._idle.get()
        try:
            sources = [pictures.source(i) for i in index]
            outcomes = worker.ask((work, sources), self._timeout)
            return take(outcomes, worker)
        except _HangsError as error:
            name = pictures.name(index[min(worker.progress(), len(index) - 1)])
            worker = self._replace(worker)
            raise RunError(
                f"{name}: not read after {self._timeout:g} seconds; is its disk there? go on when it is"
            ) from error
        except (EOFError, OSError) as error:
            name = pictures.name(index[min(worker.progress(), len(index) - 1)])
            worker, ended = self._replace(worker), worker.end()
            raise RunError(
                f"{name}: the worker process that read it ended ({ended}); is there memory enough? try fewer workers"
            ) from error
        finally:
            self._idle.put(worker)

    def _replace(self, worker: "_Worker") -> "_Worker":
        worker.kill()
        with self._lock:
            fresh = _Worker(self._length)
            self._every[self._every.index(worker)] = fresh
        return fresh

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)
            for worker in self._every:
                worker.kill()


class Pending:
    """Images on their way."""

    def __init__(self, futures: "list[Future[None]]") -> None:
        self._futures = futures

    def wait(self) -> None:
        """Until all are there. Raises what went wrong with the first that is not."""
        for future in self._futures:
            future.result()

    def drop(self) -> None:
        """They are not wanted any more; returns when nothing is written any more."""
        for future in self._futures:
            future.cancel()
        for future in self._futures:
            if not future.cancelled():
                future.exception()


def in_order(ask: Callable[[int], "Future[T]"], places: Iterable[int], ahead: int) -> Iterator[T]:
    """What came of asking for each place, in the order of the places, while up to `ahead` of them are worked on."""
    to_ask = iter(places)
    asked = deque(ask(place) for place in islice(to_ask, ahead))
    try:
        while asked:
            outcome = asked.popleft().result()
            asked.extend(ask(place) for place in islice(to_ask, 1))
            yield outcome
    finally:
        for future in asked:
            future.cancel()


class _HangsError(Exception):
    """No image was done for too long."""


class _Worker:
    """One process, its pipe and the memory that is shared with it."""

    def __init__(self, length: int) -> None:
        area = _shared_file(length)
        self.shared = mmap.mmap(area, length)
        self._pipe, there = Pipe()
        arguments = [json.dumps(sys.path), str(there.fileno()), str(area), str(length)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(there.fileno(), area),
            process_group=0,  # signals to ours do not reach it
        )
        there.close()
        os.close(area)

    def ask(self, task: tuple[Work, list[Source]], timeout: float) -> list[Outcome]:
        self.shared[:PROGRESS_BYTES] = bytes(PROGRESS_BYTES)
        self._pipe.send(task)
        seen = -1
        while not self._pipe.poll(timeout):
            if self.progress() == seen:
                raise _HangsError
            seen = self.progress()
        outcomes: list[Outcome] = self._pipe.recv()
        return outcomes

    def progress(self) -> int:
        return int.from_bytes(self.shared[:PROGRESS_BYTES], "little")

    def pixels(self, count: int, image_size: int) -> NDArray[np.uint8]:
        return shared_pixels(self.shared, count, image_size)

    def end(self) -> str:
        code = self._process.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"code {code}"

    def kill(self) -> None:
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # it ends by itself when the pipe is gone
        self._process.kill()
        self._process.wait()


def _copier(pictures: Pictures, index: list[int], rows: NDArray[np.uint8]) -> Callable[[list[Outcome], _Worker], None]:
    def copy(outcomes: list[Outcome], worker: _Worker) -> None:
        for i, outcome in zip(index, outcomes, strict=True):
            if outcome is not None:
                raise UserError(
                    f"{pictures.name(i)}: cannot be read as an image ({outcome}); repair it, or leave it out with "
                    "nofe pack --skip-unreadable and train on the shards"
                )
        np.copyto(rows, worker.pixels(len(index), rows.shape[-1]))

    return copy


def cores() -> int:
    """That this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _shared_file(length: int) -> int:
    """Memory with a file's number. Not in /dev/shm, which containers keep small."""
    if hasattr(os, "memfd_create"):
        area = os.memfd_create("nofe-images")
    else:
        with tempfile.TemporaryFile() as file:
            area = os.dup(file.fileno())
    os.ftruncate(area, length)
    return area
