"""What a resume needs, in one file that is written atomically and whose name holds its checksum.

The last two are kept: a damaged one is noticed by its checksum, and the one before it is used.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from nofe.runs import CHECKPOINTS, Run, write_atomically

KEPT = 2
log = logging.getLogger("nofe")


@dataclass(frozen=True)
class Checkpoint:
    stage: str
    step: int
    tensors: dict[str, Tensor]  # model.*, what the optimizer remembers, ema.*, generator.*, totals of the epoch
    notes: dict[str, Any]  # what is not a tensor: rate, images seen, threads, specialties


def write_checkpoint(run: Run, checkpoint: Checkpoint) -> None:
    notes = {"stage": checkpoint.stage, "step": checkpoint.step, "notes": checkpoint.notes}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    # To memory first: a full disk then fails in our own write, which cleans up after itself and says so.
    content = safetensors.torch.save(tensors, metadata={"nofe": json.dumps(notes)})
    files = _files(run)
    number = 1 + max((_number(file) for file in files), default=0)
    digest = hashlib.sha256(content).hexdigest()[:32]
    write_atomically(run.file(CHECKPOINTS) / f"{number:06d}-{digest}.safetensors", content)
    for old in files[KEPT - 1 :]:
        old.unlink(missing_ok=True)


def read_checkpoint(run: Run, stage: str) -> Checkpoint | None:
    """The newest undamaged checkpoint, if it is of this stage."""
    content = stored_checkpoint(run, stage)
    return None if content is None else checkpoint_from(content)


def stored_checkpoint(run: Run, stage: str) -> bytes | None:
    """`read_checkpoint`, as the bytes of its file."""
    for file in _files(run):
        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest()[:32] != file.stem.split("-", 1)[1]:
            log.warning("%s: damaged (its checksum differs); using the checkpoint before it", file)
            file.rename(file.with_suffix(".damaged"))  # or the next checkpoint would push the good one out
            continue
        return content if _header(content)["stage"] == stage else None
    return None


def checkpoint_from(content: bytes) -> Checkpoint:
    header = _header(content)
    return Checkpoint(header["stage"], header["step"], safetensors.torch.load(content), header["notes"])


def discard_checkpoints(run: Run) -> None:
    """Before a stage begins: those of a stage before it are not needed, those after it were made from another start."""
    for file in _files(run):
        file.unlink(missing_ok=True)


def _header(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    header: dict[str, Any] = json.loads(metadata["nofe"])
    return header


def _files(run: Run) -> list[Path]:
    """Newest first."""
    return sorted(run.file(CHECKPOINTS).glob("[0-9]*-*.safetensors"), key=_number, reverse=True)


def _number(file: Path) -> int:
    return int(file.stem.split("-", 1)[0])
