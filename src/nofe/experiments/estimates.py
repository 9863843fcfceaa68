"""How long a stage is likely to take, alone on an H200: what runs are planned by, and what `--list` says of them."""

import functools
import math
from collections.abc import Mapping

from nofe.architectures import architecture_named
from nofe.architectures.options import AdaptConfig, architecture_with
from nofe.config import RunConfig
from nofe.experiments.paper_tables import PAPER_TABLE_3
from nofe.experts.size import size_of, sizes_of, without_values
from nofe.stages import recipe_of_stage

# Seconds an epoch of 50,000 images, base and experts with K=10: steps of
# benchmarks/results/nvidia-h200/steps-by-network.json, compiled and captured, and a tenth of a second to test; for
# WRN-28-10 a quarter, as to test it takes 1.05e14 multiplications and additions, and its steps do 3.7e14 a second. That
# of AlexNet-Quick-C100 is taken for AlexNet-C100's. Networks without a time of their own, experts of today's networks
# and bases of the experts' size, have the base's by their multiplications: so VGG11-C100's two larger bases did.
SECONDS_AN_EPOCH: dict[str, tuple[float, float | None]] = {
    "alexnet-c100": (0.30, 0.35),
    "alexnet-quick-c100": (0.30, 0.35),
    "vgg11-c100": (0.43, 0.59),  # this and the next in bf16: vgg11-c100-train.json, nin-c100-train.json
    "nin-c100": (0.48, 0.65),
    "resnet56-c100": (2.55, 2.95),
    "resnet18-cifar": (1.0, None),
    "wrn-28-10": (4.45, None),
}
TIMED_BESIDE_OTHERS = tuple(PAPER_TABLE_3)  # and networks of another depth and width that are made of them
CLASSES = 100  # of CIFAR-100, which these are for
SECONDS_TO_BEGIN = 30.0  # a run: imports, images, compiling; the first of a network about twice that
# HD-CNN without its base, five minutes in all. A guess: none has been timed yet.
HDCNN_SECONDS_AN_EPOCH = {"confusion": 0.4, "fine": 0.5, "joint": 4.6}


def epochs_of(config: RunConfig) -> dict[str, int]:
    return {stage: recipe.epochs for stage, recipe in recipe_of_stage(config).items()}


def seconds_of(config: RunConfig, stage: str, epochs: int) -> float:
    name = next((name for name in SECONDS_AN_EPOCH if config.architecture.startswith(name)), None)
    if name is None:
        return math.inf  # nobody has measured it
    base, experts = SECONDS_AN_EPOCH[name]
    epochs_of_all = epochs * (1 - config.data.hold_out)
    if config.architecture != name:  # a base of the experts' size
        return epochs_of_all * base * times_the_work(name, config.architecture)
    if stage != "experts":
        return epochs_of_all * base
    if experts is None:
        return epochs_of_all * base * times_the_work_of_base(name, config.adapt, config.specialties.count)
    return epochs_of_all * experts


def seconds_of_hdcnn(behind: Mapping[str, int]) -> float:
    """What is left of it beside its base, after so many epochs of each stage; fine components have one each."""
    from nofe.experiments.hdcnn import HDCNNConfig  # here: it loads all that a network is trained with

    config = HDCNNConfig()
    epochs = {"confusion": config.confusion.epochs, "joint": config.joint.epochs}
    epochs |= {f"fine-{k}": config.fine.epochs for k in range(config.coarse_categories)}
    return sum(
        (epochs[stage] - behind.get(stage, 0)) * HDCNN_SECONDS_AN_EPOCH[stage.partition("-")[0]] for stage in epochs
    )


def times_the_work(of: str, architecture: str) -> float:
    """How many times the multiplications of one network another has."""
    return multiplications(architecture) / multiplications(of)


@functools.cache
def multiplications(architecture: str) -> int:
    known = architecture_named(architecture)
    with without_values():
        return size_of(known.classifier(CLASSES), known.input_size).multiplications


@functools.cache
def times_the_work_of_base(name: str, adapt: AdaptConfig, experts: int) -> float:
    """How many times the multiplications of their base the experts have."""
    architecture = architecture_with(name, adapt, CLASSES, experts)
    sizes = sizes_of(architecture, CLASSES, experts, architecture.input_size)
    return sizes["experts"].multiplications / sizes["base"].multiplications
