"""Where and how a training runs: device, precision, threads, signals. What it computes is not decided here.

Environment variables are read in this file, and those that torchrun sets in ranks.py; nowhere else.
"""

import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from nofe.data.folder import physical_memory
from nofe.data.workers import cores
from nofe.errors import UserError
from nofe.signals import on_signals_to_end
from nofe.training.memory import keep_freed_memory
from nofe.training.names import DEVICES, KERNELS, PRECISIONS
from nofe.training.ranks import Launch, Ranks, joined_ranks

# Compiling takes 20 to 40 seconds and saves 0.3 to 1.4 ms a step on an H200 (benchmarks/results/nvidia-h200); a stage
# with fewer steps does without. On a CPU it takes longer and saves less.
STEPS_WORTH_COMPILING = 20_000

# Percent of a GPU that a process may use, and where NVIDIA's MPS is told so. Of the shares tried these are the ones on
# which products in bfloat16 were right (benchmarks/results/nvidia-h200/products-on-a-share.json, decision 20).
SHARES = (100, 50, 25, 12)
SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

SECONDS_OF_ONE_ORDER = 2.0  # within which a signal that comes again is taken for the same one


@dataclass
class Runtime:
    """The machine a stage runs on. `stop_signal` is set when the run is asked to stop, this rank or any other."""

    device: torch.device
    precision: str = "fp32"
    compile: bool | None = False  # torch.compile; None: where the run is long enough to pay for it
    compile_ahead: bool = False  # the experts, by another process while the generalist trains
    capture: bool = False  # each training step is one CUDA graph
    kernels: str = "measure"  # of the experts: the fastest, or one of KERNELS without measuring
    # At least this long between two checkpoints; 0 is every epoch, None as often as costs little time.
    checkpoint_seconds: float | None = 0.0
    sync_batch_norm: bool = False  # over the images of all ranks, not of each its own share
    workers: int = 0  # processes that decode images that are read while training; 0 is one a core
    ranks: Ranks = field(default_factory=Ranks)
    stop_signal: int | None = field(default=None)
    # Work to be done while the GPU is busy with steps: each is called in every epoch, until it returns True.
    meanwhile: list[Callable[[], bool]] = field(default_factory=list)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def stops_before(self, step: int) -> bool:
        """Whether a signal asked for an end. All ranks stop before the same step."""
        if agreed := self.ranks.asked(self.stop_signal or 0, step):
            self.stop_signal = agreed
        return bool(agreed)

    def use_precision(self, precision: str) -> None:
        """Compute in the precision that a run asks for; `auto` changes nothing. Only a GPU has TF32."""
        if precision == "auto":
            return
        on_cuda = self.device.type == "cuda"
        if on_cuda:
            require_right_share(precision, own_share(), f"{SHARE_VARIABLE}=")
        self.precision = "fp32" if precision == "tf32" and not on_cuda else precision
        torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = self.precision != "fp32"

    def decide_on_compiling(self, steps: int) -> None:
        """By the training steps of the longest stage of a run, unless the user has decided."""
        if self.compile is None:
            self.compile = self.device.type == "cuda" and steps >= STEPS_WORTH_COMPILING
            self.compile_ahead = self.compile and self.ranks.count == 1

    @contextmanager
    def compiling(self, wanted: bool) -> Iterator[None]:
        """Compile, or do not, for one stage."""
        before, self.compile = self.compile, wanted
        try:
            yield
        finally:
            self.compile = before

    @property
    def input_dtype(self) -> torch.dtype:
        """What the first layer computes in."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def memory_for_images(self) -> int | None:
        """Bytes of images that are kept on the device; a data set with more is read while training."""
        of_machine = physical_memory()
        present = [None if of_machine is None else of_machine // self.ranks.of_node]  # each has a copy of its own
        if self.device.type == "cuda":
            present.append(torch.cuda.get_device_properties(self.device).total_memory)
        known = [each for each in present if each is not None]
        return min(known) // 2 if known else None

    def synchronize(self) -> None:
        """Wait for all that was launched: a time taken without waiting is that of launching alone."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def make_runtime(
    device: str = "auto",
    precision: str = "auto",
    *,
    compile: bool | None = None,
    capture: bool | None = None,
    kernels: str = "measure",
    checkpoint_seconds: float | None = 0.0,
    sync_batch_norm: bool = False,
    workers: int = 0,
    ranks: Ranks | None = None,
) -> Runtime:
    """Choose the device, its arithmetic and how steps are launched; every choice can be named instead."""
    if device not in DEVICES and not device.startswith("cuda:"):
        raise UserError(f"--device {device}: unknown; choose one of {', '.join(DEVICES)}")
    require_precision(precision)
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
    if capture and chosen.type != "cuda":
        raise UserError(
            f"--capture: only a CUDA device can capture steps, and this runs on {chosen.type}; leave it out"
        )
    ranks = ranks or Ranks()
    if capture and ranks.count > 1:
        raise UserError("--capture: a step that several ranks take together cannot be captured; leave it out")
    if chosen.type == "cuda":
        chosen = torch.device("cuda", chosen.index or 0)
        torch.cuda.set_device(chosen)  # where streams and captured graphs are made; it wants a number
        torch.backends.cudnn.benchmark = True  # every step has the same shapes
    if chosen.type == "cpu":
        keep_freed_memory()
    runtime = Runtime(
        chosen,
        compile=compile,
        # DDP wants eleven eager steps, and a stream of its own, before its collectives can be captured.
        capture=chosen.type == "cuda" and ranks.count == 1 if capture is None else capture,
        kernels=kernels,
        checkpoint_seconds=checkpoint_seconds,
        sync_batch_norm=sync_batch_norm,
        workers=workers or max(1, cores() // ranks.of_node),
        ranks=ranks,
    )
    # Emulated, as on GPUs before Ampere, it is slower than what it stands for.
    has_bf16 = chosen.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    own_choice = "fp32" if not has_bf16 else "bf16" if own_share() in SHARES else "tf32"
    runtime.use_precision(precision if precision != "auto" else own_choice)
    return runtime


@contextmanager
def cudnn_not_searching() -> Iterator[None]:
    """Without cuDNN's search for fast kernels, which takes longer than a pass or two, and disturbs trainings nearby."""
    searches, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = searches


@contextmanager
def drawing_aside(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Put the random generators of processor and GPU back at the end; the value tells whether any was drawn from."""

    def states() -> list[torch.Tensor]:
        own = generator_state(device)
        return [torch.get_rng_state(), *([] if own is None else [own])]

    before = states()
    try:
        yield lambda: not all(map(torch.equal, before, states()))
    finally:
        torch.set_rng_state(before[0])
        for own in before[1:]:
            set_generator_state(device, own)


def generator_state(device: torch.device) -> torch.Tensor | None:
    """Of the generator of a GPU, NVIDIA's or Apple's; None on a processor, which draws from torch's own."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else None


def set_generator_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)


def require_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise UserError(f"--precision {precision}: unknown; choose one of {', '.join(PRECISIONS)}")


@contextmanager
def launched_runtime(device: str = "auto", precision: str = "auto", **choices: Any) -> Iterator[Runtime]:
    """`make_runtime` for a process that torchrun may have started with others: it joins them, and leaves at the end."""
    launch = Launch.of_this_process()
    own_device = _device_of_rank(device, launch) if launch.count > 1 else device
    with joined_ranks(launch, on_gpu=own_device.startswith("cuda")) as ranks:
        yield ranks.each(lambda: make_runtime(own_device, precision, ranks=ranks, **choices))


def _device_of_rank(device: str, launch: Launch) -> str:
    """A GPU for each rank of a node, or the processor for all."""
    if device == "mps" or device.startswith("cuda:"):
        raise UserError(f"--device {device}: one device for {launch.count} ranks; use --device cuda or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cuda":
        return device
    if launch.local_count > (count := torch.cuda.device_count()):
        raise UserError(
            f"torchrun --nproc-per-node {launch.local_count}: there are {count} GPUs here, and each rank needs one; "
            f"start at most {count}, or use --device cpu"
        )
    return f"cuda:{launch.local_rank}"


def is_on_cuda(device: str) -> bool:
    """By the name of a device, without touching it: a process that starts others must leave the GPU to them."""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def share_of_each(processes: int) -> int:
    """Percent of a GPU that each of so many processes at once may use.

    With all of it the kernels of one got in the way of the others', with an equal share too little ran at a time
    (benchmarks/results/nvidia-h200/alexnet-c100-runs-by-share.json): about twice that is best.
    """
    return min(SHARES, key=lambda share: abs(math.log(share * processes / 200)))


def share_beside_others(processes: int) -> float:
    """Percent of a GPU that each of so many may use inside `sharing_the_gpu`."""
    return share_of_each(processes) if processes > 1 and _mps_control() else own_share()


def _mps_control() -> str | None:
    """None where NVIDIA's MPS is not installed, or was started by others already."""
    return None if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else shutil.which("nvidia-cuda-mps-control")


def own_share() -> float:
    """Percent of a GPU that this process may use, if MPS was told to limit it."""
    try:
        return float(os.environ.get(SHARE_VARIABLE) or 100)
    except ValueError:  # not a number: MPS does not heed it either
        return 100.0


def require_right_share(precision: str, share: float, named: str) -> None:
    """On other shares than these cuBLAS leaves parts of products in bfloat16 out, without a word (decision 20)."""
    if precision == "bf16" and share not in SHARES:
        shares = ", ".join(str(each) for each in sorted(SHARES))
        raise UserError(
            f"{named}{share:g}: on such a share of a GPU products of matrices in bfloat16 come out wrong; take one of "
            f"{shares}, or --precision tf32"
        )


@contextmanager
def sharing_the_gpu(processes: int, share: int | None = None) -> Iterator[None]:
    """Let processes that are started inside run their kernels at the same time, by NVIDIA's MPS if it is installed.

    Without it they take turns, and small networks leave most of the GPU idle.
    """
    control = _mps_control()
    if control is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="nofe-mps-") as folder:
        quiet = subprocess.DEVNULL  # no pipe: the daemon would hold it open, and be waited for
        settings = {
            "CUDA_MPS_PIPE_DIRECTORY": folder,
            "CUDA_MPS_LOG_DIRECTORY": folder,
            SHARE_VARIABLE: str(share or share_of_each(processes)),
        }
        os.environ |= settings
        try:
            started = subprocess.run([control, "-d"], stdout=quiet, stderr=quiet, timeout=30).returncode == 0
            try:
                yield
            finally:
                if started:
                    subprocess.run([control], input=b"quit\n", stdout=quiet, stderr=quiet, timeout=30)
        finally:
            for name in settings:
                os.environ.pop(name, None)


def stopping_on_signals(runtime: Runtime) -> AbstractContextManager[None]:
    """SIGTERM and SIGINT end the run after the current step, with a checkpoint; a second one ends it at once.

    One that comes with the first does not count: whatever signals a group of processes, as `timeout` does, reaches a
    worker of `nofe sweep` twice, directly and by way of its parent.
    """
    asked: dict[int, float] = {}

    def ask_to_stop(number: int) -> None:
        runtime.stop_signal = number
        now = time.monotonic()
        if now - asked.setdefault(number, now) > SECONDS_OF_ONE_ORDER:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return on_signals_to_end(ask_to_stop)


def environment(runtime: Runtime, seed: int) -> dict[str, Any]:
    """What a reader needs to judge or repeat a figure: versions, device, date, commit, seed."""
    packages = ("nofe", "torch", "numpy", "scipy", "scikit-learn", "POT", "safetensors", "pillow", "torchcodec")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "device": device_name(runtime.device),
        "precision": runtime.precision,
        "share_of_gpu": own_share(),
        "threads": torch.get_num_threads(),
        "ranks": runtime.ranks.count,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: version_of(name) for name in packages},
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


def version_of(package: str) -> str | None:
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
