"""Which products of matrices come out wrong where a process may use only a part of the GPU (NVIDIA's MPS).

    python benchmarks/products_on_a_share.py   # under a minute on a large GPU
    python benchmarks/products_on_a_share.py --architecture resnet56-c100 --share 66 --share 100

Each process multiplies and convolves what the networks do, or one network in its own sizes, captured and replayed, in
bfloat16 and in TF32, on a share of its own, and compares with float64. What is off by far more than rounding is filed,
by share and by setting of cuBLAS.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

SHARES = (12, 22, 25, 33, 40, 50, 66, 80, 100)  # per cent
SETTINGS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {  # variables, and what is set in torch
    "bf16": ({}, {"precision": "bf16"}),
    "tf32": ({}, {"precision": "tf32"}),
    "bf16, cuBLASLt": ({}, {"precision": "bf16", "library": "cublaslt"}),
    "bf16, sums in float32": ({}, {"precision": "bf16", "reduced": False}),
    "bf16, no workspace": ({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, {"precision": "bf16"}),
    "bf16, much workspace": ({"CUBLAS_WORKSPACE_CONFIG": ":131072:2"}, {"precision": "bf16"}),
}
LINEAR = ((128, 4096, 1024), (128, 1024, 1024), (128, 1024, 100), (128, 1024, 104), (128, 256, 100), (100, 1024, 100))
BATCHED = ((10, 128, 4096, 256), (10, 128, 1024, 10), (10, 128, 256, 10), (10, 100, 1024, 10))  # experts before those
CONVOLUTIONS = (  # images, channels in and out, size of the kernel, step, pixels
    (64, 3, 64, 3, 1, 32),
    (64, 64, 128, 3, 1, 16),
    (64, 128, 256, 3, 1, 8),
    (64, 256, 256, 3, 1, 8),
    (64, 192, 160, 1, 1, 32),
    (64, 160, 96, 1, 1, 32),
)
USUAL = {"linear": LINEAR, "batched": BATCHED, "convolutions": CONVOLUTIONS}
ROUNDING = 0.02
AT_A_TIME = 9
IN_A_PROCESS = "in-a-process"


def layers_of(architecture: str, images: int) -> dict[str, list[tuple[int, ...]]]:
    """The sizes of a network's layers, each once, as in a step on so many images."""
    import torch
    from torch import nn

    from nofe.architectures import architecture_named
    from nofe.errors import NofeError

    try:
        known = architecture_named(architecture)
    except NofeError as error:
        sys.exit(str(error))
    network = known.classifier(100).eval()
    found: dict[str, list[tuple[int, ...]]] = {"linear": [], "batched": [], "convolutions": []}

    def note(layer: nn.Module, given: tuple[torch.Tensor], _: object) -> None:
        if isinstance(layer, nn.Linear):
            found["linear"].append((images, layer.in_features, layer.out_features))
        elif isinstance(layer, nn.Conv2d):
            side, step = layer.kernel_size[0], layer.stride[0]
            if layer.groups > 1 or layer.padding != (side // 2, side // 2):
                sys.exit(f"products_on_a_share: {architecture} has a convolution that is not tried here ({layer})")
            sizes = layer.in_channels, layer.out_channels, side, step, given[0].shape[-1]
            found["convolutions"].append((images, *sizes))

    for layer in network.modules():
        layer.register_forward_hook(note)
    with torch.no_grad():
        network(torch.zeros(1, 3, known.input_size, known.input_size))
    return {kind: list(dict.fromkeys(sizes)) for kind, sizes in found.items()}


def wrong(layers: dict[str, Any], precision: str, library: str = "", reduced: bool = True) -> dict[str, float]:
    """Relative differences to float64 that are more than rounding, by what was computed."""
    import torch
    import torch.nn.functional as F

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced
    if library:
        torch.backends.cuda.preferred_blas_library(library)
    dtype = {"bf16": torch.bfloat16, "tf32": torch.float32}[precision]
    found = {}

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    def compare(name: str, function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                function(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = function(*inputs)
        for _ in range(50):
            graph.replay()
        exact = function(*(each.double() for each in inputs))
        for what, own, right in zip(("forward", "inputs", "weights"), captured, exact, strict=True):
            found[f"{name}, {what}"] = float((own.double() - right).norm() / right.norm())

    def products(x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        return x @ weight.mT, gradient @ weight, gradient.mT @ x

    def convolution(step: int, x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        how = {"stride": step, "padding": weight.shape[-1] // 2}
        of_inputs = torch.nn.grad.conv2d_input(x.shape, weight, gradient, **how)
        of_weights = torch.nn.grad.conv2d_weight(x, weight.shape, gradient, **how)
        return F.conv2d(x, weight, **how), of_inputs, of_weights

    for rows, inputs, outputs in layers["linear"]:
        compare(
            f"{rows} x {inputs} to {outputs}",
            products,
            [drawn(rows, inputs), drawn(outputs, inputs), drawn(rows, outputs)],
        )
    for experts, rows, inputs, outputs in layers["batched"]:
        operands = [drawn(experts, rows, inputs), drawn(experts, outputs, inputs), drawn(experts, rows, outputs)]
        compare(f"{experts} of {rows} x {inputs} to {outputs}", products, operands)
    for images, inputs, outputs, kernel, step, size in layers["convolutions"]:
        after = (size - 1) // step + 1
        operands = [
            drawn(images, inputs, size, size),
            drawn(outputs, inputs, kernel, kernel),
            drawn(images, outputs, after, after),
        ]
        operands = [each.to(memory_format=torch.channels_last) for each in operands]
        name = f"{inputs} to {outputs} channels, kernel {kernel}, {size} to {after} pixels"
        compare(name, partial(convolution, step), operands)
    return {name: apart for name, apart in found.items() if not apart < ROUNDING}


def in_a_process(layers: dict[str, Any], share: int, setting: str) -> subprocess.Popen[str]:
    from nofe.training.runtime import SHARE_VARIABLE

    variables, settings = SETTINGS[setting]
    return subprocess.Popen(
        [sys.executable, __file__, IN_A_PROCESS, json.dumps({"layers": layers, **settings})],
        env=os.environ | variables | {SHARE_VARIABLE: str(share)},
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    from nofe.training.runtime import environment, make_runtime, sharing_the_gpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", help="try the layers of this network, in its own sizes")
    parser.add_argument("--batch", type=int, default=128, help="images, with --architecture")
    parser.add_argument("--share", type=int, action="append", help="per cent of the GPU; repeatable")
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="repeatable; with --share: bf16 alone")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    layers: dict[str, Any] = layers_of(chosen.architecture, chosen.batch) if chosen.architecture else USUAL
    name = f"{chosen.architecture}-on-a-share" if chosen.architecture else "products-on-a-share"
    out = chosen.out or Path(f"benchmarks/results/nvidia-h200/{name}.json")
    shares, settings = chosen.share or SHARES, chosen.setting or (["bf16"] if chosen.share else SETTINGS)
    asked = [
        (share, setting)
        for setting in settings
        for share in shares
        if chosen.share or setting in ("bf16", "tf32") or share == 22
    ]
    rows = []
    with sharing_the_gpu(AT_A_TIME, 100):
        for first in range(0, len(asked), AT_A_TIME):
            started = [(*each, in_a_process(layers, *each)) for each in asked[first : first + AT_A_TIME]]
            for share, setting, process in started:
                printed, _ = process.communicate(timeout=120)
                found = json.loads(printed) if printed else "failed"
                rows.append({"share": share, "setting": setting, "wrong": found})
                print(f"{setting}, {share}%: {found or 'right'}", flush=True)
    filed = {
        "rounding": ROUNDING,
        "layers": layers,
        "environment": environment(make_runtime("cuda"), 0),
        "products": rows,
    }
    out.write_text(json.dumps(filed, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [IN_A_PROCESS]:
        print(json.dumps(wrong(**json.loads(sys.argv[2]))))
    else:
        main()
