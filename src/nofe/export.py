"""A trained network as one file that runs without nofe: a program of torch.export, or ONNX.

Subtracting the mean and cutting out the middle is part of it. What is left to do before it, reading a photo, and what
its outputs are, is in a JSON file beside it, and inside.
"""

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from nofe.architectures.line import first_line
from nofe.data.batches import centre_crop
from nofe.errors import RunError, UserError
from nofe.files import replace_atomically, require_place_for
from nofe.loading import FinishedRun, open_finished
from nofe.training.runtime import version_of

INPUT, OUTPUT = "images", "logits"
ABOUT = "about.json"  # its name inside the file
BATCHES = (1, 2, 5)  # that an exported program is compared on
ROUNDING = 1e-3  # of the largest logit: other libraries add up in another order
MOST_OF_ONNX = 1 << 31  # bytes of one file
PREPARE = (
    "RGB (16 bits scaled to 8, transparent parts white), upright by EXIF, the middle square, resized (bicubic, "
    "antialiased) to the shape above, or cut at whole pixels if it has that size; bytes from 0 to 255"
)

OTHERWISE = "export the other kind, .pt2 or .onnx, or ship the run folder"

Program = Callable[[Tensor], Tensor]  # bytes (N, 3, H, W) to logits (N, C)


@dataclass(frozen=True)
class Exported:
    """What came of it: the files, and how the program was compared with the network."""

    file: Path
    about: Path
    compared_by: str | None  # the library that ran the program; None where there was none
    needs: tuple[str, ...] = ()  # who defines operators of a .pt2 file that are not torch's, such as torchvision


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
    kind, beside = out.suffix.lower(), out.with_name(out.name + ".json")
    if kind not in _FORMATS:
        raise UserError(f"{out}: unknown kind of file; name one that ends in .pt2 (torch.export) or .onnx")
    for file in (out, beside):
        require_place_for(file)
    if kind == ".onnx":
        _require_onnx()
    finished = open_finished(path)
    about = _about(finished)
    content, compared_by, needs = _compared(kind, finished, about, out)
    described = _json(about | {"sha256": hashlib.sha256(content).hexdigest()})
    out.parent.mkdir(parents=True, exist_ok=True)
    # Both or none, on a full disk, too.
    with replace_atomically(beside) as description, replace_atomically(out) as stream:
        description.write(described.encode())
        description.flush()
        stream.write(content)
    return Exported(out, beside, compared_by, needs)


def _compared(
    kind: str, finished: FinishedRun, about: dict[str, Any], out: Path
) -> tuple[bytes, str | None, tuple[str, ...]]:
    """What to write, by which library it was run, and what that needs; an error where it gave something else."""
    # Where weights ask for gradients, attention with a learned bias gets another kernel in one pass of ONNX's exporter
    # than in the next, which then fails; and what a loaded program gives could not be made an array.
    model, path = FromBytes(finished).eval().requires_grad_(False), finished.run.path
    if kind == ".onnx":
        _require_room(model, path)
    with _quietly():
        traced = _traced(model, path)
        try:
            content, program, compared_by = _FORMATS[kind](traced, _json(about))
            differs = None if program is None else _difference(program, model)
        except Exception as error:  # whatever the libraries cannot do with a user's network
            raise RunError(
                f"{path}: its network cannot be written as {kind} ({_reason(error)}); {OTHERWISE}"
            ) from error
    if differs is not None:
        raise RunError(f"{out}: not written, as the exported program differs from the network ({differs}); {OTHERWISE}")
    return content, compared_by, _not_of_torch(traced) if kind == ".pt2" else ()


def _require_onnx() -> None:
    missing = [package for package in ("onnx", "onnxscript") if find_spec(package) is None]
    if missing:
        raise UserError(
            f"ONNX needs the package {missing[0]}, which is not installed; python -m pip install {' '.join(missing)} "
            "onnxruntime, or export a .pt2 file"
        )


def _require_room(model: nn.Module, path: Path) -> None:
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > MOST_OF_ONNX:
        raise UserError(
            f"{path}: its weights take {size / 1e9:,.1f} GB, and one file of ONNX has room for "
            f"{MOST_OF_ONNX / 1e9:,.1f}; export a .pt2 file"
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings and notes of the exporters, which are for those who develop them."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _traced(model: FromBytes, path: Path) -> torch.export.ExportedProgram:
    example = some_images(2, model.mean.shape)  # of one, torch.export would take the number for fixed
    try:
        traced = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("N")},))
    except Exception as error:  # whatever a user's network does that cannot be traced
        if "Constraints violated" in str(error):  # the only constraint is that any number of images will do
            raise RunError(
                f"{path}: its network is not the same program for any number of images, as its code takes that number "
                "for fixed or asks for it; write x.shape[0] where it has len(x), or ship the run folder instead"
            ) from error
        raise RunError(
            f"{path}: torch.export cannot trace its network ({first_line(error)}); ship the run folder instead"
        ) from error
    _forget_sources(traced)
    return traced


def _forget_sources(traced: torch.export.ExportedProgram) -> None:
    """A program keeps for each step the lines of code behind it, and the paths of their files on this machine."""
    for node in _steps(traced):
        node.meta.pop("stack_trace", None)


def _not_of_torch(traced: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Who defines operators that torch does not: a process must import them before it can load the program."""
    operators = (node.target for node in _steps(traced) if isinstance(node.target, OpOverload))
    return tuple(sorted({operator.namespace for operator in operators} - {"aten", "prims"}))


def _steps(traced: torch.export.ExportedProgram) -> Iterator[fx.Node]:
    for module in traced.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def _as_torch(traced: torch.export.ExportedProgram, about: str) -> tuple[bytes, Program, str]:
    stream = io.BytesIO()
    torch.export.save(traced, stream, extra_files={ABOUT: about})
    stream.seek(0)
    return stream.getvalue(), torch.export.load(stream).module(), "torch"


def _as_onnx(traced: torch.export.ExportedProgram, about: str) -> tuple[bytes, Program | None, str | None]:
    made = torch.onnx.export(
        traced, (), input_names=[INPUT], output_names=[OUTPUT], dynamic_shapes=({0: "N"},), verbose=False
    )
    assert made is not None
    proto = made.model_proto
    proto.metadata_props.add(key=ABOUT, value=about)
    content: bytes = proto.SerializeToString()
    if find_spec("onnxruntime") is None:
        return content, None, None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def program(images: Tensor) -> Tensor:
        [logits] = session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(logits)

    return content, program, "onnxruntime"


_FORMATS: dict[str, Callable[[torch.export.ExportedProgram, str], tuple[bytes, Program | None, str | None]]] = {
    ".pt2": _as_torch,
    ".onnx": _as_onnx,
}


def _reason(error: BaseException) -> str:
    """The exporter for ONNX wraps an error into others, which give advice; the innermost says what is wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def some_images(count: int, shape: tuple[int, ...]) -> Tensor:
    noise = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=noise)


@torch.no_grad()
def _difference(program: Program, model: FromBytes) -> str | None:
    """In words, where it is more than rounding."""
    for count in BATCHES:
        images = some_images(count, model.mean.shape)
        expected = model(images)
        apart, largest = float((program(images) - expected).abs().max()), float(expected.abs().max())
        if not apart <= ROUNDING * largest:
            return f"by {apart:.2g}, where the largest logit is {largest:.2g}"
    return None


def _about(finished: FinishedRun) -> dict[str, Any]:
    """What somebody needs to know who has the file and nothing else."""
    names = finished.class_names
    return {
        "input": {"name": INPUT, "type": "uint8", "shape": ["N", *finished.mean.shape], "prepare": PREPARE},
        "output": {
            "name": OUTPUT,
            "type": "float32",
            "shape": ["N", len(names)],
            "columns": "classes",
            "probabilities": "softmax of a row",
        },
        "classes": list(names),
        "experts": [[names[c] for c in group] for group in finished.specialties().groups()],
        "architecture": finished.config.architecture,
        "made_by": {package: version_of(package) for package in ("nofe", "torch")},
    }


def _json(about: dict[str, Any]) -> str:
    return json.dumps(about, indent=1) + "\n"
