"""The run folder: every name in it, every read, every atomic write.

A run folder holds one value a file (docs/training.md lists them). `manifest.json` has the SHA-256 of each finished
file, because neither torch nor safetensors notices a flipped bit; a file counts as there only once it is listed.
"""

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nofe.errors import RunError, UserError
from nofe.files import remove_leftovers, replace_atomically

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
SPECIALTIES = "specialties.json"
GENERALIST = "generalist.safetensors"
NETWORK = "network.safetensors"
BASE = "base.safetensors"
PAPER_BASE = "base-paper.safetensors"
INPUT = "input.npz"
KERNELS = "kernels.json"
PREDICTIONS = "predictions.npz"
SUMMARY = "summary.json"
TIME = "time.json"
REPORT = "report.html"
FIGURES = "figures"
CHECKPOINTS = "checkpoint"
MANIFEST = "manifest.json"
LOCK = ".lock"
GIVEN = (CONFIG, ENVIRONMENT)  # what a run is made from; the rest can be made again
OWN = (
    *(CONFIG, ENVIRONMENT, METRICS, SPECIALTIES, GENERALIST, NETWORK, BASE, PAPER_BASE, INPUT, KERNELS, PREDICTIONS),
    *(SUMMARY, TIME, REPORT, FIGURES, CHECKPOINTS, MANIFEST),
)
RUNS_NAMED = 5  # at most, to choose from where a folder holds no run


class Run:
    """One run folder. Construct with `open_run` to write, `Run(path)` to read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, name: str) -> Path:
        return self.path / name

    def write(self, name: str, content: bytes) -> None:
        """Write one finished file and list it in the manifest."""
        write_atomically(self.file(name), content)
        manifest = self._manifest() | {name: hashlib.sha256(content).hexdigest()}
        write_atomically(self.file(MANIFEST), _json_bytes(manifest))

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, _json_bytes(value))

    def read(self, name: str) -> bytes:
        """The content of a finished file, checked against the manifest."""
        expected = self._manifest().get(name)
        if self.file(name).exists() and not self.file(MANIFEST).exists():
            raise UserError(
                f"{self.path}: {MANIFEST} is missing, by which {name} is checked; copy it along with the other files"
            )
        if not (self.file(CONFIG).exists() or self.file(MANIFEST).exists()):
            raise UserError(no_run_in(self.path))
        if expected is None or not self.file(name).exists():
            raise UserError(f"{self.path}: there is no finished {name}; {self._why_not_there(name)}")
        content = _content(self.file(name))
        if hashlib.sha256(content).hexdigest() != expected:
            advice = "put the old one back, or start a new run" if name in GIVEN else "--resume makes it again"
            raise RunError(f"{self.file(name)}: content changed since it was written; {advice}")
        return content

    def _why_not_there(self, name: str) -> str:
        until = self.read_config().get("until") if self.file(CONFIG).exists() else None
        if until in ("base", "specialties") and name in (SPECIALTIES, GENERALIST, NETWORK, REPORT):
            return (
                f"the run was to end before it (until={until}); train on in another folder, with nofe train --reuse "
                f"{self.path}"
            )
        if self.file(NETWORK).exists() and not any(self.file(left).exists() for left in (ENVIRONMENT, METRICS)):
            return "these are the files of a network that was shipped; use the folder of the run that it is from"
        if name in GIVEN and name in self._manifest():
            return "put the old one back, or start a new run"
        return f"is the run complete? go on with nofe train --out {self.path} --resume"

    def read_json(self, name: str) -> Any:
        return json.loads(self.read(name))

    def write_arrays(self, name: str, **arrays: NDArray[Any]) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        self.write(name, buffer.getvalue())

    def read_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        with np.load(io.BytesIO(self.read(name)), allow_pickle=False) as stored:
            return dict(stored)

    def read_config(self) -> Any:
        """The configuration of a run that has begun.

        A process can be killed after config.json is there and before the manifest lists it; that run has begun, too.
        """
        if CONFIG in self._manifest():
            return self.read_json(CONFIG)
        try:
            return json.loads(self.file(CONFIG).read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.file(CONFIG)}: not the configuration of a run; name another folder with --out"
            ) from error

    def has(self, name: str) -> bool:
        """Whether the file is finished and undamaged."""
        expected, file = self._manifest().get(name), self.file(name)
        return expected is not None and file.exists() and hashlib.sha256(_content(file)).hexdigest() == expected

    def listed(self) -> set[str]:
        """Files that were finished once. They are not read, so they may be gone or damaged."""
        return set(self._manifest())

    def damaged(self) -> list[str]:
        """Files that were finished once and are gone or changed."""
        return [name for name in self._manifest() if not self.has(name)]

    def discard(self, *names: str) -> None:
        """These no longer count as finished: what they were made from is about to be made again."""
        manifest = self._manifest()
        kept = {name: digest for name, digest in manifest.items() if name not in names}
        if kept != manifest:
            write_atomically(self.file(MANIFEST), _json_bytes(kept))

    def discard_all(self) -> None:
        self.discard(*self._manifest())

    def append_metrics(self, line: dict[str, Any]) -> None:
        with failing_writes_explained(self.file(METRICS)), self.file(METRICS).open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        if not self.file(METRICS).exists():
            return []
        lines = []
        for text in _content(self.file(METRICS)).decode(errors="replace").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue  # the process was killed inside this line; its epoch is trained again
        return lines

    def forget_metrics(self, stage: str, after_step: int) -> None:
        """Drop what a resumed stage is about to do again, so that no epoch is listed twice."""
        kept = [line for line in self.metrics() if line["stage"] != stage or line["step"] <= after_step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.file(METRICS), text.encode())

    def _manifest(self) -> dict[str, str]:
        try:
            manifest: dict[str, str] = json.loads(_content(self.file(MANIFEST)))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return manifest


def _content(file: Path) -> bytes:
    """A file that cannot be read is an error: it is neither absent nor damaged, and must not be made again."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"{file}: cannot be read ({reason}); check its permissions and the disk") from error


def is_run(path: Path) -> bool:
    """Whether a run has begun in a folder, or a network was shipped in it; others, too, call a file config.json."""
    return (path / CONFIG).is_file() and (path / INPUT).is_file()


def no_run_in(path: Path) -> str:
    """What to say of a folder that holds no run, with the runs nearby that may have been meant."""
    said = f"{path}: no run is here (there is no {CONFIG}); name the folder of one"
    beside = path.parent if path.name else path.absolute().parent
    for where, folder in (("inside", path), ("inside", path / "runs"), ("beside it", beside)):
        if found := _runs_in(folder):
            more = f" and {len(found) - RUNS_NAMED:,} more" * (len(found) > RUNS_NAMED)
            return f"{said} ({where}: {', '.join(str(folder / name) for name in found[:RUNS_NAMED])}{more})"
    return said


def _runs_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if is_run(entry))
    except OSError:
        return []


@contextmanager
def open_run(path: Path, *, resume: bool, check: Callable[[Run], None]) -> Iterator[Run]:
    """Open a run folder to write in, alone.

    `check` sees the folder of a run that is resumed before anything in it is touched.
    """
    started = (path / CONFIG).exists()
    if started and not resume:
        raise UserError(
            f"{path}: holds a run already; go on with --resume (in Python resume=True), or name another folder with "
            "--out"
        )
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is a file, not a folder; name another folder with --out")
    if not started:
        _refuse_other_content(path)
        if CONFIG in Run(path)._manifest():
            raise UserError(f"{path / CONFIG}: is gone from a run that has begun; put it back, or name another folder")
    was_there = path.exists()
    _make(path)
    with _locked(path):
        run = Run(path)
        try:
            if started:
                check(run)
            for folder in (path, path / CHECKPOINTS, path / FIGURES):  # of a process that was killed while it wrote
                remove_leftovers(folder, (*OWN, "*.safetensors", "*.png"))
            yield run
        finally:
            if not was_there:
                _remove_if_nothing_has_begun(path)


def _remove_if_nothing_has_begun(path: Path) -> None:
    """A run whose input was refused must not leave a folder that takes the name from the next."""
    with suppress(OSError):
        if [entry.name for entry in path.iterdir()] == [LOCK]:
            (path / LOCK).unlink()
            path.rmdir()


def _make(path: Path) -> None:
    with failing_writes_explained(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{path}: cannot be made ({reason}); choose another folder with --out") from error


def _refuse_other_content(path: Path) -> None:
    """Refuse a folder that holds other files and no run.

    Files that a run cut off at its beginning has left do not count, but only beside a lock, which is the first file
    of every run. Nor do hidden files.
    """
    try:
        found = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError:
        return  # absent; or not readable, which is reported when it is written to
    own = {*OWN, *Run(path)._manifest()} if (path / LOCK).exists() else set()
    others = [name for name in found if name not in own]
    if others:
        raise UserError(
            f"{path}: holds no run but other files ({len(others):,}, first: {others[0]}); name another folder with "
            "--out, a new one or an empty one"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # here, because Windows has none, and reads runs all the same

    with failing_writes_explained(path):
        lock = (path / LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{path}: in use by another process; wait for it, or name another folder with --out"
            ) from error
        yield


def write_atomically(path: Path, content: bytes) -> None:
    """Either the old content or the new one is there, whenever the process is killed."""
    with failing_writes_explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as file:
            file.write(content)


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_HERE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


@contextmanager
def failing_writes_explained(path: Path) -> Iterator[None]:
    """To be put around writes alone: other failures are not the folder's fault."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise RunError(f"{path}: the disk is full; free some space and go on with --resume") from error
        reason = (error.strerror or str(error)).lower()
        if error.errno in NOT_HERE:
            raise UserError(f"{path}: cannot be written ({reason}); choose another folder with --out") from error
        raise RunError(f"{path}: could not be written ({reason}); see to it and go on with --resume") from error


def _json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
