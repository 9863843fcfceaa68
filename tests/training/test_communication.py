"""The model of communication, and that the figures of docs/scaling.md are its figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from nofe.architectures.resnet import RESNET56_C100
from nofe.training.communication import EIGHT_NODES, ONE_NODE, Fabric, StepModel, synchronised_norm_seconds

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "nvidia-h200" / "resnet56-c100-train.json"


def measured() -> dict[str, tuple[int, float]]:
    """Parameters and seconds of a step of 128 images on one GPU, as fast as it was measured."""
    timings = json.loads(MEASURED.read_text())["timings"]
    fast = {t["case"]["network"]: t for t in timings if t["case"]["mode"] == "compiled+captured"}
    named = {"base": fast["base"], "experts, K=10": fast["fused"]}
    return {name: (t["parameters"], t["milliseconds"] / 1000) for name, t in named.items()}


def test_a_ring_by_hand() -> None:
    """Of 4 ranks, each sends a quarter of the gradients three times to sum them, and three times to share them."""
    fabric = Fabric("four", ranks=4, bytes_per_second=1e6, delay_seconds=0.0)
    step = StepModel(fabric, parameters=1_000_000, compute_seconds=6.0)
    assert step.sent_bytes == 6 * 1_000_000
    assert step.communication_seconds == pytest.approx(6.0)
    assert step.least_efficiency == pytest.approx(1 / 2)
    assert step.most_efficiency == pytest.approx(6 / (6 + 6 - 4))  # 4 of the 6 seconds are hidden by backward


def test_one_rank_sends_nothing() -> None:
    alone = StepModel(replace(ONE_NODE, ranks=1), parameters=1_000_000, compute_seconds=1.0)
    assert alone.sent_bytes == alone.communication_seconds == 0
    assert alone.least_efficiency == alone.most_efficiency == 1


def test_each_bucket_is_delayed() -> None:
    slow = Fabric("slow", ranks=8, bytes_per_second=float("inf"), delay_seconds=1.0)
    assert StepModel(slow, 1000, 1.0).communication_seconds == 6  # up a tree of 8 and down again
    assert StepModel(slow, 7_000_000, 1.0).communication_seconds == 2 * 6  # 28 MB in buckets of 25 MiB


def test_the_page_on_scaling_has_these_figures() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    for name, (parameters, seconds) in measured().items():
        for fabric in (ONE_NODE, EIGHT_NODES):
            step = StepModel(fabric, parameters, seconds)
            cells = (
                f"{name}, {seconds * 1e3:.1f} ms",
                fabric.name,
                f"{step.sent_bytes / 1e6:.0f} MB",
                f"{step.communication_seconds * 1e3:.2f} ms",
                f"{step.least_efficiency:.0%} to {step.most_efficiency:.0%}",
            )
            assert f"| {' | '.join(cells)} |" in page
    layers = sum(isinstance(layer, nn.BatchNorm2d) for layer in RESNET56_C100.classifier(100).modules())
    costs = [f"{1e3 * synchronised_norm_seconds(layers, fabric):.0f} ms" for fabric in (ONE_NODE, EIGHT_NODES)]
    text = " ".join(page.split())
    assert f"its {layers} layers wait {costs[0]} a step on 8 GPUs and {costs[1]} on 64" in text
    parameters, seconds = measured()["base"]
    shared = [
        StepModel(fabric, parameters, seconds / fabric.ranks).communication_seconds + seconds / fabric.ranks
        for fabric in (ONE_NODE, EIGHT_NODES)
    ]
    falls, rises = (f"{1e3 * step:.1f}" for step in shared)
    assert f"from {1e3 * seconds:.1f} ms to {falls} on 8 GPUs and then rise to {rises} on 64" in text
