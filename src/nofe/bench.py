"""Speed, measured side by side: base, reference and fused experts; eager, captured, compiled.

Every number is a median over rounds in which all cases take turns, so that a machine that slows down slows all of
them: the ratios hold where the milliseconds do not.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from nofe.architectures import Architecture, architecture_named, parameter_count
from nofe.architectures.caffe import counting_steps_together
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.data.dataset import ImageSet
from nofe.errors import UserError
from nofe.experts.network import plant_experts
from nofe.specialties import random_balanced
from nofe.training.launch import compile_blocks, launcher
from nofe.training.loop import Objective, start_training, training_step
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, environment

NETWORKS = ("base", "loop", "fused")
MODES = ("eager", "captured", "compiled", "compiled+captured")
TASKS = ("train", "forward")


@dataclass(frozen=True)
class Case:
    network: str  # base; loop: experts one after another; fused: experts as one
    mode: str
    task: str  # a training step, or forward in evaluation mode
    classes: int
    experts: int
    batch: int


@dataclass(frozen=True)
class Timing:
    case: Case
    milliseconds: float  # a step, median
    images_per_second: float
    ratio_to_base: float | None  # of the same mode and task
    peak_megabytes: float | None  # while it ran once, above what was there before
    parameters: int
    gigaflops: float  # of the step; a multiplication and an addition are two
    share_of_peak: float | None  # of the matrix product measured in the same run


def cases(
    networks: Sequence[str] | None,
    modes: Sequence[str] | None,
    tasks: Sequence[str] | None,
    experts: Sequence[int],
    classes: Sequence[int],
    batches: Sequence[int],
) -> list[Case]:
    """Every combination; the base, which has no experts, once."""
    for name, chosen, known in (("network", networks, NETWORKS), ("mode", modes, MODES), ("task", tasks, TASKS)):
        unknown = set(chosen or ()) - set(known)
        if unknown:
            raise UserError(f"--{name} {sorted(unknown)[0]}: unknown; choose from {', '.join(known)}")
    combined = product(tasks or TASKS, batches, classes, modes or MODES, networks or NETWORKS, experts)
    made = [Case(network, mode, task, c, 0 if network == "base" else k, n) for task, n, c, mode, network, k in combined]
    return list(dict.fromkeys(made))


def measure(
    architecture: str,
    cases: Sequence[Case],
    runtime: Runtime,
    *,
    rounds: int = 7,
    seconds_a_round: float = 0.25,
) -> dict[str, Any]:
    """Time all cases in turns. Cases that the device cannot run are left out."""
    known = architecture_named(architecture)
    cases = [case for case in cases if runtime.device.type == "cuda" or "captured" not in case.mode]
    if not cases:
        raise UserError("bench: no case is left that this device can run; choose other modes")
    prepared = [_prepare(known, case, runtime) for case in cases]
    steps = [_steps_for(launch, seconds_a_round, runtime) for launch, *_ in prepared]
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds):
        for index, (launch, *_) in enumerate(prepared):
            times[index].append(_time(launch, steps[index], runtime))
    medians = [statistics.median(each) for each in times]
    base = {
        (case.mode, case.task, case.batch, case.classes): ms
        for case, ms in zip(cases, medians, strict=True)
        if case.network == "base"
    }
    peak = _peak_gigaflops(runtime)
    timings = []
    for case, ms, (_, parameters, gigaflops, megabytes) in zip(cases, medians, prepared, strict=True):
        of_base = base.get((case.mode, case.task, case.batch, case.classes))
        timings.append(
            Timing(
                case=case,
                milliseconds=round(ms, 4),
                images_per_second=round(1000 * case.batch / ms, 1),
                ratio_to_base=None if of_base is None else round(ms / of_base, 4),
                peak_megabytes=megabytes,
                parameters=parameters,
                gigaflops=round(gigaflops, 3),
                share_of_peak=round(gigaflops / ms * 1000 / peak, 4),
            )
        )
    return {
        "architecture": architecture,
        "environment": environment(runtime, seed=0),
        "rounds": rounds,
        "peak_gigaflops": round(peak, 1),
        "timings": [asdict(timing) for timing in timings],
    }


def _prepare(
    architecture: Architecture, case: Case, runtime: Runtime
) -> tuple[Callable[[], None], int, float, float | None]:
    runtime = replace(runtime, compile="compiled" in case.mode, capture="captured" in case.mode)
    torch.manual_seed(0)
    model: nn.Module
    if case.network == "base":
        model = architecture.classifier(case.classes)
    else:
        network = plant_experts(architecture, random_balanced(case.classes, case.experts, np.random.default_rng(0)))
        if case.network == "fused" and not network.fuse():
            raise UserError(f"{architecture.name}: its branches cannot be fused; leave the network 'fused' out")
        model = network
    parameters = parameter_count(model)
    batches = _noise(architecture, case, runtime)
    gigaflops = _gigaflops(model, batches, case, runtime)
    before = _allocated(runtime)
    launch = _training(model, batches, case, runtime) if case.task == "train" else _forward(model, batches, runtime)
    for _ in range(6):  # compilation, choice of kernels, capture
        launch()
    runtime.synchronize()
    if runtime.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        launch()
        runtime.synchronize()
        return launch, parameters, gigaflops, round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
    return launch, parameters, gigaflops, None


def _training(model: nn.Module, batches: Batches, case: Case, runtime: Runtime) -> Callable[[], None]:
    recipe = Recipe(epochs=1, batch=case.batch, rate=1e-6, weight_decay=5e-4)
    state = start_training("bench", model, recipe, 0, runtime)
    state.model.train()
    objective = Objective(torch.arange(case.classes, device=runtime.device))
    one_step = training_step(state, batches, objective, runtime)

    def step() -> None:
        batches.rewind()
        with counting_steps_together(model):
            one_step()

    return launcher(step, runtime)


def _forward(model: nn.Module, batches: Batches, runtime: Runtime) -> Callable[[], None]:
    model.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.eval()
    compile_blocks(model, runtime)
    images, _ = batches.next()
    images = images.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        with torch.inference_mode(), runtime.autocast():
            model(images)

    return launcher(step, runtime)


def _noise(architecture: Architecture, case: Case, runtime: Runtime) -> Batches:
    rng = np.random.default_rng(0)
    size = architecture.image_size
    pixels = rng.integers(0, 256, size=(case.batch, 3, size, size), dtype=np.uint8)
    images = ImageSet(pixels, rng.integers(0, case.classes, size=case.batch))
    on_device = DeviceImages(images, pixel_mean(images), runtime.device)
    augmentation = Augmentation(crop=architecture.input_size, mirror=True)
    batches = Batches(on_device, augmentation, batch=case.batch, seed=0, stage="bench")
    batches.begin(0)
    return batches


def _gigaflops(model: nn.Module, batches: Batches, case: Case, runtime: Runtime) -> float:
    """Of convolutions and matrix products, as torch counts them; backward is twice forward."""
    from torch.utils.flop_counter import FlopCounterMode

    model.to(runtime.device).eval()
    images, _ = batches.next()
    batches.rewind()
    with FlopCounterMode(display=False) as counter, torch.no_grad(), runtime.autocast():
        model(images)
    forward = float(counter.get_total_flops()) / 1e9
    return forward * (3 if case.task == "train" else 1)


def _peak_gigaflops(runtime: Runtime) -> float:
    """The largest matrix product this device does in the precision of the run."""
    size = 8192 if runtime.device.type == "cuda" else 1024
    kind = torch.bfloat16 if runtime.precision == "bf16" else torch.float32
    one, other = torch.randn(2, size, size, device=runtime.device, dtype=kind)

    def multiply() -> None:
        torch.mm(one, other)

    for _ in range(3):
        multiply()
    best = min(_time(multiply, 10, runtime) for _ in range(3))
    return 2 * size**3 / 1e9 / best * 1000


def _steps_for(launch: Callable[[], None], seconds: float, runtime: Runtime) -> int:
    return max(1, int(1000 * seconds / max(_time(launch, 3, runtime), 1e-3)))


def _time(launch: Callable[[], None], steps: int, runtime: Runtime) -> float:
    """Milliseconds a step."""
    runtime.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        launch()
    runtime.synchronize()
    return 1000 * (time.perf_counter() - began) / steps


def _allocated(runtime: Runtime) -> int:
    return torch.cuda.memory_allocated() if runtime.device.type == "cuda" else 0
