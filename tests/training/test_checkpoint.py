"""Checkpoints: what is read is what was written, or the one before it."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from nofe import runs
from nofe.errors import RunError
from nofe.runs import Run
from nofe.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint


def checkpoint(step: int, stage: str = "base") -> Checkpoint:
    tensors = {
        "model.w": torch.full((2, 3), float(step)),
        "model.steps": torch.tensor(step),
        "generator.cpu": torch.arange(4, dtype=torch.uint8),
    }
    return Checkpoint(stage, step, tensors, {"images": 7, "stage_notes": {"targets": [0, 1, 1], "moved": step}})


def assert_same(found: Checkpoint | None, expected: Checkpoint) -> None:
    assert found is not None
    assert (found.stage, found.step, found.notes) == (expected.stage, expected.step, expected.notes)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def files(run: Run) -> list[Path]:
    """Oldest first."""
    return sorted((run.path / runs.CHECKPOINTS).glob("[0-9]*.safetensors"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert read_checkpoint(run, "base") is None
    write_checkpoint(run, checkpoint(3))
    assert_same(read_checkpoint(run, "base"), checkpoint(3))


def test_tensors_of_any_layout(tmp_path: Path) -> None:
    """Weights in training are channels last, and some are views of others."""
    weights = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    parameter = torch.nn.Parameter(torch.randn(6, 2).t())
    write_checkpoint(Run(tmp_path), Checkpoint("base", 1, {"w": weights, "v": weights[:2], "p": parameter}, {}))
    found = read_checkpoint(Run(tmp_path), "base")
    assert found is not None
    assert torch.equal(found.tensors["w"], weights)
    assert torch.equal(found.tensors["v"], weights[:2])
    assert torch.equal(found.tensors["p"], parameter)


def test_the_last_two_are_kept_and_the_newest_read(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in range(1, 13):  # more than ten: 10 is newer than 9
        write_checkpoint(run, checkpoint(step))
        assert len(files(run)) == min(step, 2)
        assert_same(read_checkpoint(run, "base"), checkpoint(step))
    files(run)[-1].unlink()
    assert_same(read_checkpoint(run, "base"), checkpoint(11))


def test_a_checkpoint_of_another_stage_is_not_taken(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_checkpoint(run, checkpoint(90, "base"))
    write_checkpoint(run, checkpoint(5, "generalist"))
    assert_same(read_checkpoint(run, "generalist"), checkpoint(5, "generalist"))
    assert read_checkpoint(run, "experts") is None
    # Nor an older one of the stage asked for: a later stage began, so that one ended and left its result.
    assert read_checkpoint(run, "base") is None


def test_any_damage_to_the_newest_makes_the_one_before_it_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    write_checkpoint(run, checkpoint(1))
    write_checkpoint(run, checkpoint(2))
    newest = files(run)[-1]
    good = newest.read_bytes()
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= 1 << place % 8
        newest.write_bytes(damaged)
        found = read_checkpoint(run, "base")
        assert found is not None
        assert found.step == 1
    for length in range(0, len(good), 7):
        newest.write_bytes(good[:length])
        found = read_checkpoint(run, "base")
        assert found is not None
        assert found.step == 1
    assert f"{newest}: damaged" in caplog.text
    newest.write_bytes(good)
    assert_same(read_checkpoint(run, "base"), checkpoint(2))


def test_with_all_damaged_there_is_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in (1, 2):
        write_checkpoint(run, checkpoint(step))
    for file in files(run):
        file.write_bytes(b"")
    assert read_checkpoint(run, "base") is None


def test_a_damaged_one_is_never_kept_instead_of_a_good_one(tmp_path: Path) -> None:
    """After a resume from the earlier one that one stays: the next checkpoint may be damaged, too."""
    run = Run(tmp_path)
    for step in (1, 2):
        write_checkpoint(run, checkpoint(step))
    files(run)[-1].write_bytes(b"damaged")
    assert_same(read_checkpoint(run, "base"), checkpoint(1))
    write_checkpoint(run, checkpoint(3))
    files(run)[-1].write_bytes(b"damaged, too")
    assert_same(read_checkpoint(run, "base"), checkpoint(1))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_keeps_the_checkpoints_there_are(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    for step in (1, 2):
        write_checkpoint(run, checkpoint(step))
    before = {file.name: file.read_bytes() for file in files(run)}

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(RunError, match="the disk is full"):
            write_checkpoint(run, checkpoint(3))
    assert {file.name: file.read_bytes() for file in files(run)} == before
    assert_same(read_checkpoint(run, "base"), checkpoint(2))
    write_checkpoint(run, checkpoint(3))
    assert_same(read_checkpoint(run, "base"), checkpoint(3))


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_checkpoint(run, checkpoint(1))
    left_over = run.path / runs.CHECKPOINTS / f".{files(run)[0].name}.123.partial"
    shutil.copy(files(run)[0], left_over)
    for step in (2, 3):
        write_checkpoint(run, checkpoint(step))
    assert_same(read_checkpoint(run, "base"), checkpoint(3))
    assert left_over.exists()
