"""What torchrun starts in test_distributed.py, once for each rank. A test runs the same functions as one process."""

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import nofe
from conftest import small_dataset
from nofe import frozen, pipeline, runs
from nofe.api import configure
from nofe.architectures import Classifier
from nofe.architectures.resnet import resnet_branch, resnet_head, resnet_trunk
from nofe.architectures.small import SMALL
from nofe.config import RunConfig
from nofe.data.batches import Augmentation, Batches, DeviceImages, pixel_mean
from nofe.errors import RunError, UserError
from nofe.evaluation import accuracy, count_confusion, predict
from nofe.experts.network import NetworkOfExperts
from nofe.specialties import Specialties
from nofe.training import ranks
from nofe.training.loop import Objective, batches_of, start_training, train_epoch
from nofe.training.progress import Silent
from nofe.training.recipe import Recipe
from nofe.training.runtime import Runtime, launched_runtime

RECIPE = Recipe(epochs=1, batch=16, rate=0.01, weight_decay=1e-3, augmentation=Augmentation(padding=2, mirror=True))
TODAY = Recipe(
    epochs=2,
    batch=16,
    rate=1e-3,
    weight_decay=0.05,
    optimizer="adamw",
    schedule="cosine",
    warmup_epochs=0.5,
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
    ema=0.9,
    augmentation=Augmentation(padding=2, mirror=True, randaugment=2, erasing=0.5),
)
SETTINGS = {
    "specialties.count": 2,
    "generalist.confusion_images": 101,
    "generalist.epochs": 3,
    "generalist.batch": 16,
    "generalist.rate": 0.00002,
    "experts.epochs": 3,
    "experts.batch": 16,
    "experts.rate": 0.00002,
}


def alike_everywhere() -> None:
    """No page, whose drawing takes longer than all else; and batches so small that every rank evaluates some.

    80 test images are twelve batches of 7 and 3, and 101 for the confusion fifteen of 7 and 3: no even shares.
    """
    pipeline.report_if_possible = lambda run: None
    frozen.images_at_once = lambda runtime: 7


def bars_folder(root: Path) -> Path:
    dataset = small_dataset()
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        for number, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
            file = root / part / dataset.class_names[label] / f"{number:04d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.transpose(1, 2, 0)).save(file)
    return root


def bars_run(images: Path) -> RunConfig:
    """AlexNet-Quick, which has neither batch norm nor dropout."""
    return configure(f"folder:{images}", "alexnet-quick-c100", settings=SETTINGS)


# Networks with batch norm: torch's, Caffe's, and both kinds stacked for several experts.


def small() -> nn.Module:
    return SMALL.classifier(8)


def narrow_resnet() -> nn.Module:
    return Classifier(resnet_trunk(blocks=1, width=4), resnet_head(8, inputs=16))


def narrow_experts() -> nn.Module:
    specialties = Specialties([0, 0, 0, 0, 0, 1, 1, 1])  # 5 and 3 classes: padded, when fused
    branches = [resnet_branch(int(size), inputs=16) for size in specialties.sizes]
    network = NetworkOfExperts(resnet_trunk(blocks=1, width=4), branches, specialties)
    network.fuse()
    return network


def with_activations_in_norms() -> nn.Module:
    from timm.layers import BatchNormAct2d

    convolutions = (nn.Conv2d(3, 8, 5, stride=4), nn.Conv2d(8, 8, 3))
    layers = [layer for convolution in convolutions for layer in (convolution, BatchNormAct2d(8, act_layer=nn.SiLU))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))


def with_an_idle_weight() -> nn.Module:
    model = small()
    model.register_parameter("spare", nn.Parameter(torch.ones(3)))  # which no forward reads
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "small": small,
    "resnet": narrow_resnet,
    "experts": narrow_experts,
    "activations in norms": with_activations_in_norms,
    "an idle weight": with_an_idle_weight,
}


class InDouble(nn.Module):
    """Where float32 loses the digits in which two trainings agree: a step further on, another maximum is pooled."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.double()

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.double())


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(3 * 32 * 32, 8))


def trained(make: Callable[[], nn.Module], runtime: Runtime, recipe: Recipe = RECIPE) -> dict[str, Tensor]:
    """Weights, running statistics and the figures of the last epoch."""
    torch.manual_seed(0)
    model = InDouble(make())
    dataset = small_dataset()
    images = DeviceImages(dataset.train, pixel_mean(dataset.train), runtime.device)
    state = start_training("base", model, recipe, 0, runtime)
    batches = batches_of(state, images, runtime)
    for _ in range(recipe.epochs):
        train_epoch(state, batches, Objective(torch.arange(8), smoothing=recipe.label_smoothing), runtime, Silent())
    state.finish()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()} | {"totals": state.totals.clone()}


def evaluated(runtime: Runtime) -> dict[str, Tensor]:
    """An untrained network on the 80 test images, and on training images of which some are asked for twice."""
    torch.manual_seed(0)
    dataset = small_dataset()
    test = DeviceImages(dataset.test, pixel_mean(dataset.train), runtime.device)
    model = small()
    made = predict(model, test, 32, runtime)
    index = torch.arange(101) % 67
    confusion = count_confusion(model, test, 32, (8, 8), runtime, index)
    few = count_confusion(model, test, 32, (8, 8), runtime, index[:5])  # less than a batch: nothing for rank 1
    tables = {"labels": made.labels, "classes": made.classes, "probabilities": made.probabilities}
    tables |= {"confusion": confusion, "few": few, "accuracy": np.array(accuracy(model, test, 32, runtime))}
    return {name: torch.from_numpy(table) for name, table in tables.items()}


def errors(runtime: Runtime) -> list[str]:
    """What this rank raises where one of them fails."""

    def fail(error: Exception, on: int) -> None:
        if runtime.ranks.rank == on:
            raise error

    said = []
    for act in (
        lambda: runtime.ranks.first(lambda: fail(UserError("no such folder; name another"), on=0)),
        lambda: runtime.ranks.each(lambda: fail(UserError("data: absent; bring them"), on=1)),
        lambda: runtime.ranks.each(lambda: fail(RunError("disk full"), on=0)),
    ):
        try:
            act()
        except (UserError, RunError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def warnings(runtime: Runtime) -> list[str]:
    """What this rank says where all of them see something, and rank 1 something more."""
    log, heard = logging.getLogger("nofe"), logging.Handler()
    said: list[str] = []
    heard.emit = lambda record: said.append(record.getMessage())
    log.addHandler(heard)
    for _ in range(2):
        runtime.ranks.each(lambda: log.warning("birds: 1 image cannot be read"))
        runtime.ranks.each(lambda: runtime.ranks.rank and log.warning("birds: no val/ here"))
    log.removeHandler(heard)
    return said


def together(out: Path, images: Path) -> None:
    """All of it on the ranks of this launch; each writes down what it found."""
    with launched_runtime("cpu") as runtime:
        rank = runtime.ranks.rank
        found = {
            "evaluated": evaluated(runtime),
            "errors": errors(runtime),
            "warnings": warnings(runtime),
            "apart": {name: trained(make, runtime) for name, make in NETWORKS.items()},
        }
        trained(with_dropout, runtime)
        found["generators"] = runtime.ranks.gather(torch.get_rng_state())
    with launched_runtime("cpu", sync_batch_norm=True) as runtime:  # joined again, in the same process
        found["synchronised"] = {name: trained(make, runtime) for name, make in NETWORKS.items()}
        found["today"] = {name: trained(make, runtime, TODAY) for name, make in NETWORKS.items()}
    folder = out / f"run-of-{rank}"  # rank 0's is the one that counts
    found["summary"] = nofe.train(
        folder, f"folder:{images}", "alexnet-quick-c100", settings=SETTINGS, device="cpu", quiet=True
    )["networks"]
    short = SETTINGS | {"generalist.epochs": 1, "experts.epochs": 1}
    found["with norms"] = nofe.train(
        out / f"norms-of-{rank}", f"folder:{images}", settings=short, device="cpu", sync_batch_norm=True, quiet=True
    )["networks"]
    folder, folder_of_first = (out / f"gone-on-with-by-{each}" for each in (rank, 0))
    os.chdir(out if rank == 0 else images)  # where only rank 0 finds the file of groups
    if rank == 0:
        names = sorted(path.name for path in (images / "train").iterdir())
        Path("groups.json").write_text(json.dumps({"some": names[:3], "others": names[3:]}))
    by_groups = {"until": "specialties", "specialties.rule": "groups", "specialties.groups": "groups.json"}
    nofe.train(folder, f"folder:{images}", settings=short | by_groups, device="cpu", quiet=True)
    if rank == 0:
        (folder / runs.SUMMARY).unlink()
    # As the run has it, which rank 1 cannot read: it is told.
    found["gone on with"] = nofe.train(folder, resume=True, device="cpu", quiet=True)["networks"]
    others: Any = {"settings": short | by_groups, "device": "cpu", "quiet": True}
    found["reused"] = nofe.train("reused", f"folder:{images}", reuse=[folder_of_first.name], **others)["networks"]
    others["settings"] |= {"adapt.weights": f"{folder_of_first.name}/{runs.BASE}"}
    try:
        nofe.train("from weights", f"folder:{images}", **others)
    except UserError as error:
        found["errors"].append(str(error))
    torch.save(found, out / f"found-by-{rank}.pt")


def failing_on_rank_1() -> None:
    """In its third step, while rank 0 goes on with it."""
    fed = []

    def feed(batches: Batches) -> None:
        fed.append(batches)
        if len(fed) == 3 and int(batches._share[0]) > 0:
            raise RunError("0001.png: not read after 120 seconds; is its disk there?")

    Batches.feed = feed
    ranks.PATIENCE = timedelta(seconds=0.5)


if __name__ == "__main__":
    alike_everywhere()
    if sys.argv[1] == "failing":
        del sys.argv[1]
        failing_on_rank_1()
    if sys.argv[1] == "together":
        together(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        from nofe.__main__ import main

        main()
