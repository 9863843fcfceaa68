"""Speed, measured side by side: base, reference and fused experts; eager, captured, compiled.

Every number is a median over rounds in which cases take turns, so that a machine that slows down slows all of them:
the ratios hold where the milliseconds do not. Those that take turns are a base and the experts compared with it; one
such group after another is on the device, so that a sweep over K and C needs no more memory than its largest case.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from nofe.files import slug
from nofe.frozen import FrozenNetwork
from nofe.specialties import random_balanced
from nofe.training.launch import MODES, compile_blocks, in_mode, launcher, launches_in, milliseconds
from nofe.training.loop import Objective, start_training, training_step
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, device_name, environment

NETWORKS = ("base", "loop", "fused")
TASKS = ("train", "forward", "inference")
USUAL_TASKS = ("train", "forward")
MANY = 10**9  # images to come: all that may make their evaluation faster is worth it
GROWTH = {"experts": (2, 5, 10, 20, 50, 100), "classes": (100, 1_000, 10_000)}


@dataclass(frozen=True)
class Case:
    network: str  # base; loop: experts one after another; fused: experts as one
    mode: str
    task: str  # a training step; forward in evaluation mode; or inference, as nofe evaluate and predict do it
    classes: int
    experts: int
    batch: int


@dataclass(frozen=True)
class Timing:
    case: Case
    milliseconds: float  # a step, median
    images_per_second: float
    ratio_to_base: float | None  # of the same mode and task
    peak_megabytes: float | None  # of a few steps, beyond weights and images: activations, gradients, velocities
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
    combined = product(tasks or USUAL_TASKS, batches, classes, modes or MODES, networks or NETWORKS, experts)
    made = [Case(network, mode, task, c, 0 if network == "base" else k, n) for task, n, c, mode, network, k in combined]
    return list(dict.fromkeys(made))


def growing(
    what: str,
    networks: Sequence[str] | None,
    tasks: Sequence[str] | None,
    batches: Sequence[int],
    device: torch.device,
    experts: int = 10,
    classes: Sequence[int] | None = None,
) -> list[Case]:
    """Cost as K grows at 100 classes, or as C grows at so many experts; in the mode that trainings here use."""
    if what not in GROWTH:
        raise UserError(f"--grow {what}: unknown; choose from {', '.join(GROWTH)}")
    mode = "captured" if device.type == "cuda" else "eager"
    if what == "experts":
        return cases(networks, [mode], tasks, GROWTH["experts"], [100], batches)
    over = [c for c in classes or GROWTH["classes"] if c >= experts]
    if not over:
        raise UserError(f"--experts {experts}: more than there are classes; name larger ones with --classes")
    return cases(networks, [mode], tasks, [experts], over, batches)


@dataclass
class _Prepared:
    launch: Callable[[], None]
    parameters: int
    gigaflops: float
    megabytes: float | None
    steps: int = 0
    times: list[float] = field(default_factory=list)


def measure(
    architecture: str,
    cases: Sequence[Case],
    runtime: Runtime,
    *,
    rounds: int = 7,
    seconds_a_round: float = 0.25,
) -> dict[str, Any]:
    """Time all cases, group by group. Cases that the device cannot run are left out."""
    known = architecture_named(architecture)
    cases = [case for case in cases if runtime.device.type == "cuda" or "captured" not in case.mode]
    if not cases:
        raise UserError("bench: no case is left that this device can run; choose other modes")
    peak = _peak_gigaflops(runtime)
    ratios: dict[Case, float | None] = {}
    finished: dict[Case, _Prepared] = {}
    prepared: dict[Case, _Prepared] = {}
    for group in _groups(cases):
        for gone in prepared.keys() - set(group):
            finished[gone] = replace(prepared.pop(gone), launch=_nothing)  # which holds the network
        _release(runtime)
        for case in group:
            if case not in prepared:
                prepared[case] = _prepare(known, case, runtime)
                prepared[case].steps = launches_in(prepared[case].launch, seconds_a_round, runtime)
        times: dict[Case, list[float]] = {case: [] for case in group}
        for _ in range(rounds):
            for case in group:
                times[case].append(milliseconds(prepared[case].launch, prepared[case].steps, runtime))
        for case in group:
            prepared[case].times += times[case]
        of_base = next((statistics.median(times[case]) for case in group if case.network == "base"), None)
        for case in group:
            # The base is in several groups, and its own row is over all of them; a ratio is inside one.
            ratios[case] = None if of_base is None else statistics.median(times[case]) / of_base
    finished |= prepared
    peak = max(peak, _peak_gigaflops(runtime))  # twice: who disturbs one of them may be gone in the other
    return {
        "architecture": architecture,
        "environment": environment(runtime, seed=0),
        "kernels": runtime.kernels,
        "rounds": rounds,
        "peak_gigaflops": round(peak, 1),
        "timings": [asdict(_timing(case, finished[case], ratios[case], peak)) for case in cases],
    }


def prepare(architecture: str, case: Case, runtime: Runtime) -> Callable[[], None]:
    """One step of the case, run in as it will be from now on."""
    return _prepare(architecture_named(architecture), case, runtime).launch


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases of one task, mode, batch, C and K, and the base that they are compared with."""
    bases = {_setting(case): case for case in cases if case.network == "base"}
    groups: dict[tuple[Any, ...], list[Case]] = {}
    order = list(dict.fromkeys(map(_setting, cases)))  # as they first come, so that a base is prepared once
    for case in sorted(cases, key=lambda case: order.index(_setting(case))):
        if case.network != "base":
            base = bases.get(_setting(case))
            groups.setdefault((*_setting(case), case.experts), [] if base is None else [base]).append(case)
    alone = [[base] for setting, base in bases.items() if not any(key[:-1] == setting for key in groups)]
    return [*groups.values(), *alone]


def _setting(case: Case) -> tuple[Any, ...]:
    return case.task, case.mode, case.batch, case.classes


def _timing(case: Case, measured: _Prepared, ratio: float | None, peak: float) -> Timing:
    ms = statistics.median(measured.times)
    return Timing(
        case=case,
        milliseconds=round(ms, 4),
        images_per_second=round(1000 * case.batch / ms, 1),
        ratio_to_base=None if ratio is None else round(ratio, 4),
        peak_megabytes=measured.megabytes,
        parameters=measured.parameters,
        gigaflops=round(measured.gigaflops, 3),
        share_of_peak=round(measured.gigaflops / ms * 1000 / peak, 4),
    )


def _nothing() -> None:
    pass


def _release(runtime: Runtime) -> None:
    gc.collect()  # captured graphs and networks hold each other
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()


def _prepare(architecture: Architecture, case: Case, runtime: Runtime) -> _Prepared:
    runtime = in_mode(runtime, case.mode)
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
    if case.network == "fused" and case.task != "inference":  # which chooses for itself
        model.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        shape = (case.batch, 3, architecture.input_size, architecture.input_size)
        network.choose_kernels(shape, runtime, training=case.task == "train")
    launch = {"train": _training, "forward": _forward, "inference": _inference}[case.task](
        model, batches, case, runtime
    )
    if runtime.device.type == "cpu" and not runtime.compile:
        megabytes: float | None = round(_peak_on_processor(launch) / 2**20, 1)
    else:
        megabytes = None
    launch()  # compilation, and the choice of kernels, which tries some that want much memory
    if runtime.device.type == "cuda":
        runtime.synchronize()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(5):  # two more as they are, and the capture: a replay allocates nothing
        launch()
    runtime.synchronize()
    if runtime.device.type == "cuda":
        megabytes = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
    return _Prepared(launch, parameters, gigaflops, megabytes)


def _peak_on_processor(launch: Callable[[], None]) -> int:
    """Bytes, beyond what was there: of two launches, the first of which makes what stays, such as velocities."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as noted:
        launch()
        launch()
    now = most = 0
    for event in noted.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


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


def _forward(model: nn.Module, batches: Batches, case: Case, runtime: Runtime) -> Callable[[], None]:
    model.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.eval()
    compile_blocks(model, runtime)
    images, _ = batches.next()
    images = images.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        with torch.inference_mode(), runtime.autocast():
            model(images)

    return launcher(step, runtime)


def _inference(model: nn.Module, batches: Batches, case: Case, runtime: Runtime) -> Callable[[], None]:
    """The path of nofe evaluate and predict; a captured pass is launched by itself."""
    images, _ = batches.next()
    ready = FrozenNetwork(model, runtime, MANY, images.shape[-1], at_once=case.batch)

    def answer() -> None:
        ready(images)

    return answer


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
    best = min(milliseconds(multiply, 10, runtime) for _ in range(3))
    return 2 * size**3 / 1e9 / best * 1000


def _allocated(runtime: Runtime) -> int:
    return torch.cuda.memory_allocated() if runtime.device.type == "cuda" else 0


def runtime_for(modes: Sequence[str] | None, runtime: Runtime) -> Runtime:
    """The first of the modes, or how a training on this device runs."""
    mode = modes[0] if modes else ("captured" if runtime.device.type == "cuda" else "eager")
    return in_mode(runtime, mode)


def table_name(architecture: str, tasks: Sequence[str] | None, grow: str | None, experts: int = 10) -> str:
    parts = [architecture, *(tasks or ()), *(("as", grow, "grow") if grow else ())]
    if experts != 10:
        parts.append(f"k{experts}")
    return "-".join(parts)


def folder_of(runtime: Runtime) -> str:
    """A name for the device: `nvidia-h200`, `amd-epyc-2-cores`."""
    return slug(device_name(runtime.device))
