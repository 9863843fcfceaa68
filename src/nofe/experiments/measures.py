"""What is measured on finished runs beside their accuracy: retrieval, and the time of inference."""

import base64
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nofe.architectures.nin import NIN_C100
from nofe.data.batches import TEN
from nofe.evaluation import predictions_of
from nofe.experiments.hdcnn import is_hdcnn, open_hdcnn
from nofe.experts.network import plant_at_random
from nofe.loading import open_finished
from nofe.report.neighbours import neighbours_picture
from nofe.retrieval import grid_of, retrieve
from nofe.stages import crop_of_stage
from nofe.training.launch import launcher, launches_in, milliseconds
from nofe.training.runtime import Runtime

QUERIES_SHOWN = 8
EXPERTS_OF_PAPER = 10  # of NIN-C100
INFERENCE_BATCHES = (1, 256)
ROUNDS, SECONDS_A_ROUND = 7, 0.1


def retrieval(run: Path, runtime: Runtime) -> dict[str, Any]:
    """Precision at 1, 3 and 10 over all test images, and a grid of examples that nobody chose."""
    finished = open_finished(run)
    base = finished.base()
    assert base is not None  # the experiment sees to it
    network = finished.network().to(runtime.device)
    test = finished.test_images(runtime)
    found = retrieve(network, base.to(runtime.device), test, finished.crop, runtime)
    queries = np.random.default_rng(0).choice(len(test), QUERIES_SHOWN, replace=False)
    picture = neighbours_picture(grid_of(found, test, [int(query) for query in queries]))
    return {
        "precision": found.precision(),
        "picture": {
            "png": base64.b64encode(picture.png).decode(),
            "caption": picture.caption,
            "alternative": picture.alternative,
        },
    }


def networks_to_time(runs: Sequence[Path]) -> tuple[dict[str, nn.Module], int]:
    """Base and experts of some runs, HD-CNN of others, each as one network; and the pixels of an image.

    Beside HD-CNN alone, base and experts have random weights: a time does not depend on weights.
    """
    networks: dict[str, nn.Module] = {}
    crop = NIN_C100.input_size
    for run in runs:
        if is_hdcnn(run):
            of_paper = open_hdcnn(run)
            of_paper.run_as_one()
            networks["hd-cnn"] = of_paper
            continue
        finished = open_finished(run)
        base = finished.base()
        assert base is not None  # the experiment sees to it
        experts = finished.network()
        experts.fuse()
        networks |= {"base": base, "experts": experts}
        crop = finished.crop
    if networks.keys() == {"hd-cnn"}:
        experts = plant_at_random(NIN_C100, of_paper.classes, EXPERTS_OF_PAPER)
        experts.fuse()
        networks |= {"base": NIN_C100.classifier(of_paper.classes), "experts": experts}
    return networks, crop


def milliseconds_of(networks: dict[str, nn.Module], crop: int, runtime: Runtime) -> dict[str, Any]:
    """By network and batch size: the median over rounds in which all take turns. Captured where that can be."""
    passes: dict[tuple[str, int], Callable[[], None]] = {}
    for name, network in networks.items():
        network.to(runtime.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        for batch in INFERENCE_BATCHES:
            images = torch.zeros(batch, 3, crop, crop, device=runtime.device)
            passes[name, batch] = _forward(network, images.to(memory_format=torch.channels_last), runtime)
    for launch in passes.values():
        for _ in range(6):  # choice of kernels, capture
            launch()
    launches = {case: launches_in(launch, SECONDS_A_ROUND, runtime) for case, launch in passes.items()}
    times: dict[tuple[str, int], list[float]] = {case: [] for case in passes}
    for _ in range(ROUNDS):
        for case, launch in passes.items():
            times[case].append(milliseconds(launch, launches[case], runtime))
    return {
        name: {str(batch): round(statistics.median(times[name, batch]), 4) for batch in INFERENCE_BATCHES}
        for name in networks
    }


def _forward(network: nn.Module, images: torch.Tensor, runtime: Runtime) -> Callable[[], None]:
    def step() -> None:
        with torch.inference_mode(), runtime.autocast():
            network(images)

    return launcher(step, runtime)


def ten_crops(run: Path, runtime: Runtime) -> dict[str, Any]:
    """Top-1 and top-5 by ten crops, as the paper judges on ImageNet, of all networks over classes that the run has."""
    finished = open_finished(run)
    runtime.use_precision(finished.config.precision)
    test = finished.test_images(runtime)
    predictions = predictions_of(finished.classifiers(), crop_of_stage(finished.config), test, runtime, TEN)
    return {stage: {"top_1": each.top(1), "top_5": each.top(5)} for stage, each in predictions.items()}


MEASURES: dict[str, Callable[[Path, Runtime], dict[str, Any]]] = {
    "retrieval": retrieval,
    "ten_crops": ten_crops,
}
