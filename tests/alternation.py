"""Stage 1 by itself, on a network small enough for tests."""

from pathlib import Path
from typing import Any

import torch

from nofe.architectures import Classifier
from nofe.architectures.small import small_head, small_trunk
from nofe.data import Dataset
from nofe.data.batches import DeviceImages, pixel_mean
from nofe.generalist import GeneralistConfig, train_generalist
from nofe.runs import Run
from nofe.specialties import Specialties, Update
from nofe.training.journal import Journal
from nofe.training.progress import Silent
from nofe.training.runtime import Runtime
from nofe.training.workbench import Workbench


def learn(
    folder: Path,
    dataset: Dataset,
    start: Specialties,
    rule: Update | None,
    chosen: GeneralistConfig,
    seed: int = 0,
    width: int = 8,
) -> tuple[Specialties, Classifier, list[dict[str, Any]]]:
    torch.manual_seed(seed)
    model = Classifier(small_trunk(width), small_head(start.count, inputs=2 * width))
    mean = pixel_mean(dataset.train)
    runtime = Runtime(torch.device("cpu"))
    run = Run(folder)
    learned = train_generalist(
        model,
        start,
        rule,
        chosen,
        Workbench(
            train=DeviceImages(dataset.train, mean, runtime.device),
            test=DeviceImages(dataset.test, mean, runtime.device),
            seed=seed,
            runtime=runtime,
            journal=Journal(run, runtime, Silent()),
        ),
    )
    return learned, model, run.metrics()
