"""Where the time of a training step goes: every kernel of it, by PyTorch's profiler.

    python benchmarks/kernels.py --architecture resnet56-c100 --network base --network fused --mode compiled+captured

prints, for each network, its kernels by time, and what the networks after the first take beyond it by kind, and writes
benchmarks/results/<device>/<architecture>-kernels.json. On a CPU they are PyTorch's operators. Kernels that run beside
each other count each by itself, and a profiled step is slower: `nofe bench` has how long a step takes.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from nofe.bench.cases import DEFAULT_CLASSES, DEFAULT_EXPERTS, Case
from nofe.bench.steps import prepare
from nofe.bench.tables import keep
from nofe.errors import NofeError
from nofe.report.text import table
from nofe.training.launch import MODES
from nofe.training.runtime import Runtime, environment, make_runtime

# What a kernel is for, by a part of its name; the first that fits.
KINDS = {
    "weights": ("_step_of_a_piece", "fused_sgd", "foreach"),
    "compiled": ("triton",),
    "convolutions": ("conv", "fprop", "dgrad", "wgrad", "xmma", "cudnn", "winograd"),
    "products": ("gemm", "nvjet", "cutlass", "bmm", "addmm", "::mm"),
    "copies": ("memcpy", "memset", "copy", "cat", "fill"),
}
STEPS = 20


def kernels_of(step: Callable[[], None], runtime: Runtime) -> list[dict[str, Any]]:
    """Microseconds and launches of a step, the longest first."""
    on_gpu = runtime.device.type == "cuda"
    step()
    runtime.synchronize()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as noted:
        for _ in range(STEPS):
            step()
        runtime.synchronize()
    found = [
        {
            "kernel": event.key,
            "kind": kind_of(event.key),
            "microseconds": round((event.self_device_time_total if on_gpu else event.self_cpu_time_total) / STEPS, 2),
            "launches": round(event.count / STEPS, 2),
        }
        for event in noted.key_averages()
    ]
    return sorted((each for each in found if each["microseconds"] > 0), key=lambda each: -each["microseconds"])


def kind_of(kernel: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in kernel.lower() for part in parts)), "others")


def by_kind(kernels: list[dict[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for each in kernels:
        total[each["kind"]] += each["microseconds"]
    return dict(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="resnet56-c100")
    parser.add_argument("--network", action="append", choices=("base", "loop", "fused"), help="default: base and fused")
    parser.add_argument("--mode", default="eager", choices=MODES)
    parser.add_argument("--experts", type=int, default=DEFAULT_EXPERTS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--most", type=int, default=25, help="kernels of each network to print; the file has all")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    runtime = make_runtime(chosen.device, chosen.precision)
    if "captured" in chosen.mode and runtime.device.type != "cuda":
        sys.exit(f"--mode {chosen.mode}: steps are captured on a GPU alone; choose eager or compiled")
    measured: dict[str, Any] = {
        "what": f"kernels of a training step, {chosen.mode}, batch {chosen.batch}",
        "kernels": {},
    }
    first: dict[str, float] = {}
    for network in chosen.network or ["base", "fused"]:
        experts = 0 if network == "base" else chosen.experts
        case = Case(network, chosen.mode, "train", DEFAULT_CLASSES, experts, chosen.batch)
        kernels = kernels_of(prepare(chosen.architecture, case, runtime), runtime)
        measured["kernels"][network] = kernels
        kinds = by_kind(kernels)
        print(f"\n{chosen.architecture}, {network}: {sum(kinds.values()) / 1000:.3f} ms of kernels")
        rows = [(f"{each['microseconds']:.1f}", f"{each['launches']:g}", each["kernel"][:90]) for each in kernels]
        print(table(("us a step", "launches", "kernel"), rows[: chosen.most]))
        rows = [(kind, f"{us:.1f}", f"{us - first.get(kind, 0):+.1f}" if first else "") for kind, us in kinds.items()]
        print(table(("kind", "us a step", "beyond the first"), rows))
        first = first or kinds
    measured["environment"] = environment(runtime, seed=0)
    print(keep(measured, f"{chosen.architecture}-kernels", runtime, chosen.out))


if __name__ == "__main__":
    try:
        main()
    except NofeError as error:
        sys.exit(str(error))
