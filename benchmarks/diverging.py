"""Which way to run a step makes VGG11-C100 diverge: a question that is open.

    python benchmarks/diverging.py           # some two minutes on a large GPU, by estimate
    python benchmarks/diverging.py --apart   # and three more: what failed, taken apart

Nine trainings side by side, in bfloat16, compiled and captured, each on 22% of the GPU by MPS, all had a loss that was
not finite within an epoch. Without MPS it learned in fp32, in bfloat16 captured, in bfloat16 compiled, and in TF32
compiled and captured; in bfloat16 compiled and captured it was not tried (results/nvidia-h200/vgg11-diverging.json).

On a processor, of faults put in on purpose, old, late or doubled steps do not make it diverge; garbage does, and so do
examples that are made alike, by one draw of dropout for many or by one label for all. This trains on smooth noise,
which begins as CIFAR-100 does, and says for each way which step was the first to go wrong; before that it compares each
product and convolution, captured and in bfloat16 on a share of the GPU, with float32. To be deleted with the question.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

SHARE = 22  # per cent
LINEAR = ((4096, 1024), (1024, 1024), (1024, 100), (1024, 104), (1024, 10))  # inputs, outputs
CONVOLUTIONS = ((3, 64, 32), (64, 64, 32), (64, 128, 16), (128, 128, 16), (128, 256, 8), (256, 256, 8))  # and pixels


def train(
    mode: str,
    steps: int = 200,
    precision: str = "bf16",
    device: str = "cuda",
    beside: bool = True,
    dropout: bool = True,
    padding: bool = True,
    own_random: bool = True,
    shape_padding: bool = True,
) -> dict[str, Any]:
    """`beside`: weights are stepped while backward goes on; `own_random`: the compiler's own dropout, not torch's."""
    import torch
    import torch._inductor.config as inductor

    from nofe.architectures import architecture_named
    from nofe.data.batches import DeviceImages, pixel_mean
    from nofe.errors import RunError
    from nofe.recipes import VGG11
    from nofe.training import loop, one_launch
    from nofe.training.launch import in_mode
    from nofe.training.progress import Silent
    from nofe.training.runtime import make_runtime

    one_launch.ENOUGH = one_launch.ENOUGH if beside else 2**40
    inductor.fallback_random, inductor.shape_padding = not own_random, shape_padding
    runtime = in_mode(make_runtime(device, precision), mode)
    torch.manual_seed(0)
    model = architecture_named("vgg11-c100").classifier(100)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) and not dropout:
            module.p = 0.0
    recipe = VGG11.base if padding else replace(VGG11.base, augmentation=replace(VGG11.base.augmentation, padding=0))
    state = loop.start_training("base", model, recipe, 0, runtime)
    images = smooth_noise()
    batches = loop.batches_of(state, DeviceImages(images, pixel_mean(images), runtime.device), runtime)
    objective = loop.Objective(torch.arange(100, device=runtime.device))
    totals = torch.full((steps,), math.nan, device=runtime.device)

    class Noted(Silent):
        def advance(self, state: loop.TrainState, images: int) -> None:
            totals[state.step - 1].copy_(state.totals[0])  # nobody waits for it

    error = ""
    an_epoch = batches.steps_per_epoch
    try:
        while state.step < steps:
            until = min(steps, (state.step // an_epoch + 1) * an_epoch)
            loop.train_epoch(state, batches, objective, runtime, Noted(), until=until)
    except RunError as failed:
        error = str(failed)
    sums = totals.tolist()
    losses = [
        (total - (sums[step - 1] if step % an_epoch else 0)) / batches.global_batch for step, total in enumerate(sums)
    ]
    wrong = next((step for step, loss in enumerate(losses, start=1) if not math.isfinite(loss)), None)
    return {"first step that is wrong": wrong, "losses": [round(loss, 2) for loss in losses[:12]], "error": error}


def smooth_noise(count: int = 6400) -> Any:
    import numpy as np

    from nofe.data.dataset import ImageSet

    rng = np.random.default_rng(0)
    coarse = rng.normal(120, 75, (count, 3, 4, 4)).repeat(8, 2).repeat(8, 3)
    pixels = (coarse + rng.normal(0, 20, coarse.shape)).clip(0, 255).astype(np.uint8)
    return ImageSet(pixels, rng.integers(0, 100, count))


def products() -> dict[str, Any]:
    """Relative differences to float32 that are more than rounding."""
    import torch
    import torch.nn.functional as F

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    found = {}

    def drawn(*shape: int) -> torch.Tensor:
        tensor = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        return tensor.to(memory_format=torch.channels_last) if len(shape) == 4 else tensor

    def compare(
        name: str, function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], *rest: int
    ) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                function(*inputs, *rest)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(priority=-1)):
            captured = function(*inputs, *rest)
        for _ in range(50):
            graph.replay()
        exact = function(*(each.float() for each in inputs), *rest)
        for what, own, right in zip(("forward", "inputs", "weights"), captured, exact, strict=True):
            found[f"{name}, {what}"] = float((own.float() - right).norm() / right.norm())

    def linear(x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        return x @ weight.t(), gradient @ weight, gradient.t() @ x

    def convolution(
        x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, outputs: int
    ) -> Sequence[torch.Tensor]:
        wanted = [True, True, False]
        ones, zeros = [1, 1], [0, 0]
        of_inputs, of_weights, _ = torch.ops.aten.convolution_backward(
            gradient, x, weight, [outputs], ones, ones, ones, False, zeros, 1, wanted
        )
        return F.conv2d(x, weight, padding=1), of_inputs, of_weights

    for inputs, outputs in LINEAR:
        compare(f"{inputs} to {outputs}", linear, [drawn(128, inputs), drawn(outputs, inputs), drawn(128, outputs)])
    for inputs, outputs, size in CONVOLUTIONS:
        maps, gradient = drawn(128, inputs, size, size), drawn(128, outputs, size, size)
        name = f"{inputs} to {outputs} channels of {size} pixels"
        compare(name, convolution, [maps, drawn(outputs, inputs, 3, 3), gradient], outputs)
    return {"wrong": {name: apart for name, apart in found.items() if not apart < 0.01}, "compared": len(found)}


def in_processes(what: str, share: int | None = None, processes: int = 1, **settings: Any) -> None:
    """So many at a time, each on its share of the GPU; nothing is compiled before."""
    from whole_job import caches_in  # beside this script

    from nofe.training.runtime import sharing_the_gpu

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as empty, sharing_the_gpu(9, share) if share else nullcontext():
        started = [
            subprocess.Popen(
                [sys.executable, __file__, what, json.dumps(settings)],
                env=os.environ | caches_in(empty),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        print(f"{what}, share {share}, {processes} at a time, {settings}")
        for process in started:
            out, error = process.communicate(timeout=300)
            print(f"  {out.strip() or error[-2000:]}", flush=True)
    print(f"  {time.monotonic() - began:.0f} s", flush=True)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["train"]:
        print(json.dumps(train(**json.loads(arguments[1]))))
    elif arguments[:1] == ["products"]:
        print(json.dumps(products()))
    elif arguments in ([], ["--apart"]):
        both = "compiled+captured"
        in_processes("products", SHARE)
        in_processes("train", SHARE, mode="captured")
        in_processes("train", SHARE, mode=both)
        in_processes("train", mode=both)
        in_processes("train", SHARE, processes=9, mode=both)
        if arguments:
            in_processes("train", 100, mode=both)
            in_processes("train", SHARE, mode="compiled")
            for off in ("beside", "dropout", "own_random", "padding", "shape_padding"):
                in_processes("train", SHARE, mode=both, **{off: False})
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
