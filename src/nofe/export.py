"""A trained network as one file that runs without nofe: a program of torch.export, or ONNX.

Subtracting the mean and cutting out the middle is part of it. What is left to do before it, reading a photo, and what
its outputs are, is in a JSON file beside it.
"""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nofe.architectures.line import first_line
from nofe.data.batches import centre_crop
from nofe.errors import RunError, UserError
from nofe.files import replace_atomically
from nofe.loading import FinishedRun, open_finished
from nofe.training.runtime import version_of

INPUT, OUTPUT = "images", "logits"
BATCHES = (1, 2, 5)  # that an exported program is compared on
ROUNDING = 1e-3  # of the largest logit: other libraries add up in another order
PREPARE = "RGB, upright, the middle square, resized (bicubic, antialiased) to the shape above; bytes from 0 to 255"

Program = Callable[[Tensor], Tensor]  # bytes (N, 3, H, W) to logits (N, C)


@dataclass(frozen=True)
class Exported:
    """What came of it: the files, and how the program was compared with the network."""

    file: Path
    about: Path
    compared_by: str | None  # the library that ran the program; None where there was none


class FromBytes(nn.Module):
    """Images (N, 3, H, W) as bytes to logits (N, C) in class order."""

    mean: Tensor

    def __init__(self, finished: FinishedRun) -> None:
        super().__init__()
        self.network = finished.network()
        self.register_buffer("mean", torch.from_numpy(finished.mean))
        self._crop = finished.crop

    def forward(self, images: Tensor) -> Tensor:  # (N, 3, H, W)
        logits: Tensor = self.network(centre_crop(images.float() - self.mean, self._crop))
        return logits


def export_run(path: Path, out: Path) -> Exported:
    """Write the network of a finished run to `out`, `.pt2` or `.onnx`, and what it reads and gives to `out`.json.

    Before anything is written the program is run, and must give what the network gives.
    """
    kind = out.suffix.lower()
    if kind not in _FORMATS:
        raise UserError(f"{out}: unknown kind of file; name one that ends in .pt2 (torch.export) or .onnx")
    finished = open_finished(path)
    model = FromBytes(finished).eval()
    content, program, compared_by = _FORMATS[kind](_traced(model, finished, path))
    if program is not None:
        _require_the_same(program, model, finished, out)
    about = out.with_name(out.name + ".json")
    out.parent.mkdir(parents=True, exist_ok=True)
    for file, data in ((out, content), (about, _about(finished, content))):
        with replace_atomically(file) as stream:
            stream.write(data)
    return Exported(out, about, compared_by)


def _traced(model: FromBytes, finished: FinishedRun, path: Path) -> torch.export.ExportedProgram:
    example = some_images(2, finished)  # of one, torch.export would take the number for fixed
    try:
        return torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("N")},))
    except Exception as error:  # whatever a user's network does that cannot be traced
        raise RunError(
            f"{path}: torch.export cannot trace its network ({first_line(error)}); ship the run folder instead"
        ) from error


def _as_torch(traced: torch.export.ExportedProgram) -> tuple[bytes, Program, str]:
    stream = io.BytesIO()
    torch.export.save(traced, stream)
    stream.seek(0)
    return stream.getvalue(), torch.export.load(stream).module(), "torch"


def _as_onnx(traced: torch.export.ExportedProgram) -> tuple[bytes, Program | None, str | None]:
    missing = [package for package in ("onnx", "onnxscript") if find_spec(package) is None]
    if missing:
        raise UserError(
            f"ONNX needs the package {missing[0]}, which is not installed; python -m pip install {' '.join(missing)} "
            "onnxruntime, or export a .pt2 file"
        )
    made = torch.onnx.export(traced, (), input_names=[INPUT], output_names=[OUTPUT], verbose=False)
    assert made is not None
    content: bytes = made.model_proto.SerializeToString()
    if find_spec("onnxruntime") is None:
        return content, None, None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def program(images: Tensor) -> Tensor:
        [logits] = session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(logits)

    return content, program, "onnxruntime"


_FORMATS: dict[str, Callable[[torch.export.ExportedProgram], tuple[bytes, Program | None, str | None]]] = {
    ".pt2": _as_torch,
    ".onnx": _as_onnx,
}


def some_images(count: int, finished: FinishedRun) -> Tensor:
    noise = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *finished.mean.shape), dtype=torch.uint8, generator=noise)


@torch.no_grad()
def _require_the_same(program: Program, model: FromBytes, finished: FinishedRun, out: Path) -> None:
    for count in BATCHES:
        images = some_images(count, finished)
        expected = model(images)
        apart, largest = float((program(images) - expected).abs().max()), float(expected.abs().max())
        if not apart <= ROUNDING * largest:
            raise RunError(
                f"{out}: not written, as the exported program differs from the network (by {apart:.2g}, where the "
                f"largest logit is {largest:.2g}); export the other kind, .pt2 or .onnx, or ship the run folder"
            )


def _about(finished: FinishedRun, content: bytes) -> bytes:
    """What somebody needs to know who has the file and nothing else."""
    names = finished.class_names
    about: dict[str, Any] = {
        "input": {"name": INPUT, "type": "uint8", "shape": ["N", *finished.mean.shape], "prepare": PREPARE},
        "output": {"name": OUTPUT, "type": "float32", "shape": ["N", len(names)], "columns": "classes"},
        "classes": list(names),
        "experts": [[names[c] for c in group] for group in finished.specialties().groups()],
        "architecture": finished.config.architecture,
        "sha256": hashlib.sha256(content).hexdigest(),
        "made_by": {package: version_of(package) for package in ("nofe", "torch")},
    }
    return (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()
