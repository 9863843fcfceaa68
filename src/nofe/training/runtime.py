"""Where and how a training runs: device, precision, threads, signals. What it computes is not decided here.

Environment variables are read in this file alone.
"""

import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nofe.errors import NofeError, UserError

DEVICES = ("auto", "cuda", "mps", "cpu")
PRECISIONS = ("auto", "bf16", "tf32", "fp32")
KERNELS = ("measure", "together", "loop", "product", "branches")


class Interrupted(NofeError):
    """A signal asked the run to stop; what was done is saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


@dataclass
class Runtime:
    """The machine a stage runs on. `stop_signal` is set when the run is asked to stop after the current step."""

    device: torch.device
    precision: str = "fp32"
    compile: bool = False  # torch.compile
    capture: bool = False  # each training step is one CUDA graph
    kernels: str = "measure"  # of the experts: the fastest, or one of KERNELS without measuring
    checkpoint_seconds: float = 0.0  # at least this long between two checkpoints; 0 is every epoch
    rank: int = 0
    ranks: int = 1
    stop_signal: int | None = field(default=None)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def make_runtime(
    device: str = "auto",
    precision: str = "auto",
    *,
    compile: bool | None = None,
    capture: bool | None = None,
    kernels: str = "measure",
    checkpoint_seconds: float = 0.0,
) -> Runtime:
    """Choose the device, its arithmetic and how steps are launched; every choice can be named instead."""
    if device not in DEVICES and not device.startswith("cuda:"):
        raise UserError(f"--device {device}: unknown; choose one of {', '.join(DEVICES)}")
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: unknown; choose one of {', '.join(PRECISIONS)}")
    if kernels not in KERNELS:
        raise UserError(f"--kernels {kernels}: unknown; choose one of {', '.join(KERNELS)}")
    try:
        chosen = torch.device(_best_device() if device == "auto" else device)
    except RuntimeError as error:
        raise UserError(f"--device {device}: unknown; number a GPU as in cuda:0") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {device}: PyTorch sees no GPU here; use --device cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= (count := torch.cuda.device_count()):
        raise UserError(f"--device {device}: there are {count} GPUs here; use cuda:0 to cuda:{count - 1}")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device {device}: PyTorch sees no Apple GPU here; use --device cpu")
    if precision == "auto":
        has_bf16 = chosen.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bf16" if has_bf16 else "fp32"
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    if capture and chosen.type != "cuda":
        raise UserError(
            f"--capture: only a CUDA device can capture steps, and this runs on {chosen.type}; leave it out"
        )
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # where streams and captured graphs are made
        torch.backends.cudnn.benchmark = True  # every step has the same shapes
    return Runtime(
        chosen,
        precision,
        compile=bool(compile),
        capture=chosen.type == "cuda" if capture is None else capture,
        kernels=kernels,
        checkpoint_seconds=checkpoint_seconds,
    )


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


@contextmanager
def stopping_on_signals(runtime: Runtime) -> Iterator[None]:
    """SIGTERM and SIGINT end the run after the current step, with a checkpoint; a second one ends it at once."""

    if threading.current_thread() is not threading.main_thread():  # no other may set handlers
        yield
        return

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        runtime.stop_signal = number
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(runtime: Runtime, seed: int) -> dict[str, Any]:
    """What a reader needs to judge or repeat a figure: versions, device, date, commit, seed."""
    packages = ("nofe", "torch", "numpy", "scipy", "scikit-learn", "POT", "safetensors")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "device": device_name(runtime.device),
        "precision": runtime.precision,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in packages},
        "cuda": torch.version.cuda,
        "commit": _commit(),
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_model()}, {os.cpu_count()} cores" if device.type == "cpu" else "Apple GPU"


def cache_folder() -> Path:
    """Where measurements are kept between runs: NOFE_CACHE, or nofe/ in the user's folder for caches."""
    if named := os.environ.get("NOFE_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nofe"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that this code runs from; None outside one. NOFE_COMMIT overrides it."""
    if named := os.environ.get("NOFE_COMMIT"):
        return named
    here = Path(sys.modules["nofe"].__file__ or ".").parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
