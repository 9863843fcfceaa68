"""The run folder loses nothing: not when a write fails, not when the process is killed, not when a bit flips."""

import errno
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nofe import runs
from nofe.errors import NofeError, RunError, UserError
from nofe.runs import Run, open_run, write_atomically

OLD, NEW = b"the old content", b"the new content, which is longer"
FULL = OSError(errno.ENOSPC, "No space left on device")


def failing(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def fill_the_disk(path: Path) -> None:
    """For real: the temporary file of the next write lies on a device that is always full."""
    path.with_name(f".{path.name}.{os.getpid()}.partial").symlink_to("/dev/full")


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_write_replaces_the_content(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    for content in (OLD, NEW, b""):
        write_atomically(file, content)
        assert file.read_bytes() == content
        assert names(file.parent) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error",
    [FULL, OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()],
    ids=["full", "broken", "interrupted"],
)
def test_a_write_that_fails_leaves_the_old_content(
    call: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_atomically(file, OLD)
    monkeypatch.setattr(os, call, failing(error))
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else RunError) as caught:
        write_atomically(file, NEW)
    assert file.read_bytes() == OLD
    assert names(tmp_path) == ["file"]
    if error is FULL:
        assert str(caught.value) == f"{file}: the disk is full; free some space and go on with --resume"


def test_the_content_reaches_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary file in the same folder, fsync, replace, fsync of the folder: in this order (traps.md)."""
    calls: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(number: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{number}")))
        fsync(number)

    def note_replace(source: Path, target: Path) -> None:
        assert source.read_bytes() == NEW  # all of it, before it gets its name
        calls.append(("replace", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_atomically(tmp_path / "file", NEW)
    [(first, temporary), second, third] = calls
    assert first == "fsync"
    assert Path(temporary).parent == tmp_path
    assert second == ("replace", str(tmp_path / "file"))
    assert third == ("fsync", str(tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("file", OLD)
    fill_the_disk(tmp_path / "file")
    with pytest.raises(RunError, match="the disk is full"):
        run.write("file", NEW)
    assert run.read("file") == OLD
    fill_the_disk(tmp_path / runs.MANIFEST)
    with pytest.raises(RunError, match="the disk is full"):
        run.write("other", NEW)
    assert run.read("file") == OLD
    assert not run.has("other")  # it was never listed
    assert names(tmp_path) == ["file", "manifest.json", "other"]
    (tmp_path / runs.METRICS).symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"metrics\.jsonl: the disk is full"):
        run.append_metrics({"stage": "base"})


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, RunError, "the disk is full"),
        (errno.EDQUOT, RunError, "the disk is full"),
        (errno.EIO, RunError, "input/output error"),
        (errno.EACCES, UserError, "choose another folder"),
        (errno.EPERM, UserError, "choose another folder"),
        (errno.EROFS, UserError, "choose another folder"),
        (errno.ENAMETOOLONG, UserError, "choose another folder"),
    ],
)
def test_each_way_a_write_can_fail_is_told_in_one_line(
    number: int, kind: type[NofeError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", failing(OSError(number, os.strerror(number))))
    with pytest.raises(kind, match=words) as caught:
        write_atomically(tmp_path / "file", NEW)
    assert str(tmp_path / "file") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("weights", bytes(range(40)))
    run.write("other", OLD)
    for place in range(40):
        for bit in range(8):
            damaged = bytearray(range(40))
            damaged[place] ^= 1 << bit
            (tmp_path / "weights").write_bytes(damaged)
            assert not run.has("weights")
            with pytest.raises(RunError, match="weights: content changed since it was written"):
                run.read("weights")
    for length in range(40):
        (tmp_path / "weights").write_bytes(bytes(range(length)))
        assert not run.has("weights")
    assert run.has("other")
    (tmp_path / "weights").write_bytes(bytes(range(40)))
    assert run.read("weights") == bytes(range(40))


def test_a_flipped_bit_in_the_manifest_never_lets_a_wrong_file_pass(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write("weights", OLD)
    manifest = (tmp_path / runs.MANIFEST).read_bytes()
    for place in range(len(manifest)):
        damaged = bytearray(manifest)
        damaged[place] ^= 1
        (tmp_path / runs.MANIFEST).write_bytes(damaged)
        assert not run.has("weights") or run.read("weights") == OLD


def test_a_file_counts_once_it_is_listed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "weights").write_bytes(OLD)
    assert not run.has("weights")
    with pytest.raises(UserError, match=r"manifest\.json is missing, by which weights is checked; copy it along"):
        run.read("weights")
    run.write("another", OLD)
    with pytest.raises(UserError, match="there is no finished weights; is the run complete"):
        run.read("weights")
    run.write("weights", OLD)
    assert run.has("weights")
    (tmp_path / "weights").unlink()
    assert not run.has("weights")


@pytest.mark.parametrize("name", ["weights", runs.MANIFEST, runs.METRICS])
def test_a_file_that_cannot_be_read_is_not_taken_for_one_to_make_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read_bytes = Run(tmp_path), Path.read_bytes
    run.write("weights", OLD)
    run.append_metrics(LINES[0])

    def forbidden(self: Path) -> bytes:
        if self.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    told = rf"{name}: cannot be read \(permission denied\); check its permissions and the disk"
    reads = (
        [run.metrics]
        if name == runs.METRICS
        else [lambda: run.read("weights"), lambda: run.has("weights"), run.damaged]
    )
    for read in reads:
        with pytest.raises(UserError, match=told):
            read()
    monkeypatch.undo()
    assert run.read("weights") == OLD


@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_reading_where_no_run_is(what: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if what == "a file":
        path.write_text("x")
    assert not Run(path).has(runs.SPECIALTIES)
    with pytest.raises(UserError, match=r"no run is here \(there is no config\.json\); name the folder of one"):
        Run(path).read_json(runs.SPECIALTIES)


LINES = [
    {"stage": "base", "step": 10, "epoch": 1, "loss": 2.5},
    {"stage": "generalist", "step": 5, "update": 1},
    {"stage": "generalist", "step": 10, "epoch": 1},
    {"stage": "generalist", "step": 15, "update": 3},
]


def test_metrics_are_kept_in_order(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.metrics() == []
    for line in LINES:
        run.append_metrics(line)
    assert run.metrics() == LINES
    assert len((tmp_path / runs.METRICS).read_text().splitlines()) == len(LINES)


def test_a_line_cut_short_at_any_place_is_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for line in LINES:
        run.append_metrics(line)
    content = (tmp_path / runs.METRICS).read_bytes()
    start = content.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start, len(content) - 1):
        (tmp_path / runs.METRICS).write_bytes(content[:end])
        assert run.metrics() == LINES[:-1]
        # A resumed stage forgets first, so that its own lines do not go on in the middle of the cut one.
        run.forget_metrics("experts", after_step=-1)
        run.append_metrics(LINES[-1])
        assert run.metrics() == LINES


def test_a_line_that_is_no_text_any_more_is_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.append_metrics(LINES[0])
    with (tmp_path / runs.METRICS).open("ab") as file:
        file.write(b"\xff\x00\xbf\n")
    run.append_metrics(LINES[1])
    assert run.metrics() == LINES[:2]


@pytest.mark.parametrize(
    ("stage", "after", "left"),
    [
        ("generalist", 10, [0, 1, 2]),
        ("generalist", 9, [0, 1]),
        ("generalist", -1, [0]),
        ("generalist", 15, [0, 1, 2, 3]),
        ("base", -1, [1, 2, 3]),
        ("experts", -1, [0, 1, 2, 3]),
    ],
)
def test_what_is_done_again_is_forgotten(stage: str, after: int, left: list[int], tmp_path: Path) -> None:
    run = Run(tmp_path)
    for line in LINES:
        run.append_metrics(line)
    run.forget_metrics(stage, after_step=after)
    assert run.metrics() == [LINES[index] for index in left]
    assert names(tmp_path) == [runs.METRICS]


def begin(path: Path, *, resume: bool = False, checked: list[Path] | None = None) -> None:
    """Open and write a configuration, as the pipeline does."""
    seen = [] if checked is None else checked
    with open_run(path, resume=resume, check=lambda run: seen.append(run.path)) as run:
        run.write_json(runs.CONFIG, {"seed": 0})


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    checked: list[Path] = []
    begin(tmp_path / "a" / "b", checked=checked)
    assert checked == []  # nothing there to be compared with
    before = {path.name: path.read_bytes() for path in (tmp_path / "a" / "b").iterdir()}
    with pytest.raises(UserError, match="holds a run already; go on with --resume"):
        begin(tmp_path / "a" / "b")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "a" / "b").iterdir()}
    begin(tmp_path / "a" / "b", resume=True, checked=checked)
    assert checked == [tmp_path / "a" / "b"]


def test_a_run_whose_configuration_is_gone_is_not_written_over(tmp_path: Path) -> None:
    """Else the default run would be trained there, on other images."""
    begin(tmp_path / "run")
    (tmp_path / "run" / runs.CONFIG).unlink()
    for resume in (True, False):
        with pytest.raises(UserError, match=r"config.json: is gone from a run that has begun; put it back"):
            begin(tmp_path / "run", resume=resume)
    with pytest.raises(UserError, match=r"there is no finished config.json; put the old one back"):
        Run(tmp_path / "run").read(runs.CONFIG)


def test_input_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        with pytest.raises(UserError, match="misspelt"), open_run(path, resume=False, check=lambda _: None):
            raise UserError("misspelt")

    fail(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    fail(tmp_path / "mine")
    assert (tmp_path / "mine").exists(), "who made it may want it"

    def begin_and_fail() -> None:
        with open_run(tmp_path / "begun", resume=False, check=lambda _: None) as run:
            run.write_json(runs.CONFIG, {})
            raise UserError("late")

    with pytest.raises(UserError, match="late"):
        begin_and_fail()
    assert Run(tmp_path / "begun").has(runs.CONFIG)


def test_a_run_that_may_not_go_on_is_not_touched(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with (
        pytest.raises(UserError, match="another configuration"),
        open_run(tmp_path / "run", resume=True, check=failing(UserError("another configuration"))),
    ):
        pytest.fail("opened")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_a_process_killed_before_the_configuration_was_listed(tmp_path: Path) -> None:
    """Between config.json and the manifest there is a moment; a run killed in it goes on, with its configuration."""
    (tmp_path / runs.CONFIG).write_text(json.dumps({"seed": 7}))
    assert Run(tmp_path).read_config() == {"seed": 7}
    checked: list[Path] = []
    begin(tmp_path, resume=True, checked=checked)
    assert checked == [tmp_path]
    (tmp_path / runs.CONFIG).write_text(json.dumps({"seed": 8}))  # now it is listed, and was changed since
    with pytest.raises(RunError, match="content changed"):
        Run(tmp_path).read_config()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_somebody_elses_configuration(content: bytes, tmp_path: Path) -> None:
    (tmp_path / runs.CONFIG).write_bytes(content)
    with pytest.raises(UserError, match=r"config\.json"):
        Run(tmp_path).read_config()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / "file" / "run" / "deeper"):
        with pytest.raises(UserError, match="--out"):
            begin(path)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_other_files_is_refused_and_not_touched(tmp_path: Path, resume: bool) -> None:
    """The data folder, say: a run in it would be taken for classes, and its files for the run's."""
    (tmp_path / "birds" / "train").mkdir(parents=True)
    (tmp_path / "birds" / "val").mkdir()
    told = r"birds: holds no run but other files \(2, first: train\); name another folder with --out"
    with pytest.raises(UserError, match=told):
        begin(tmp_path / "birds", resume=resume)
    assert names(tmp_path / "birds") == ["train", "val"]
    (tmp_path / "birds" / runs.LOCK).touch()  # left by a run of before this was asked
    with pytest.raises(UserError, match=told):
        begin(tmp_path / "birds", resume=resume)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / runs.REPORT).touch()  # named as a run's, and no run was ever here
    with pytest.raises(UserError, match=r"1, first: report\.html"):
        begin(tmp_path / "report", resume=resume)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "left",
    [
        (),
        (".gitkeep", ".DS_Store"),
        (runs.LOCK,),
        (runs.LOCK, ".environment.json.77.partial"),
        (runs.LOCK, runs.ENVIRONMENT, ".manifest.json.77.partial"),
        (runs.LOCK, runs.ENVIRONMENT, runs.INPUT, runs.MANIFEST, ".config.json.77.partial"),
    ],
)
def test_an_interrupted_beginning_is_begun_again(tmp_path: Path, left: tuple[str, ...], resume: bool) -> None:
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).touch()
    begin(tmp_path / "run", resume=resume)
    assert Run(tmp_path / "run").read_config() == {"seed": 0}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", resume=False, check=failing(AssertionError())) as run:
        with (
            pytest.raises(UserError, match="in use by another process"),
            open_run(tmp_path / "run", resume=False, check=failing(AssertionError())),
        ):
            pytest.fail("opened twice")
        run.write("file", OLD)
    with open_run(tmp_path / "run", resume=False, check=failing(AssertionError())) as again:
        assert again.read("file") == OLD


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path: Path) -> None:
    """As large as a network, once a kill. Not what a run that may not go on has, and nothing of others."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / runs.CHECKPOINTS).mkdir()
    left = [f".network.safetensors.{ended.pid}.partial", f"checkpoint/.000003-0a.safetensors.{ended.pid}.partial"]
    others = [f".notes.txt.{ended.pid}.partial", f".network.safetensors.{os.getppid()}.partial"]
    for name in [*left, *others, runs.CONFIG]:
        (tmp_path / name).write_text("{}")

    def refuse(run: Run) -> None:
        raise UserError("another configuration")

    for check, kept in ((refuse, [*left, *others]), (lambda run: None, others)):
        with suppress(UserError), open_run(tmp_path, resume=True, check=check):
            pass
        assert sorted(kept) == sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.partial"))


def test_only_failing_writes_are_blamed_on_the_folder(tmp_path: Path) -> None:
    """A data file that may not be read, while the run is open, is no reason to choose another --out."""
    with (
        pytest.raises(PermissionError, match="cifar"),
        open_run(tmp_path / "run", resume=False, check=failing(AssertionError())),
    ):
        raise PermissionError(errno.EACCES, "Permission denied", "cifar")
