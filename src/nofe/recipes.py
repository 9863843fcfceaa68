"""The paper's training settings (supplement, "Network Specifications"), as data, and the default run of each network.

Where paper and release differ, the choice and its reason are in docs/paper-map.md. Recipes of today, for any network,
stand at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from nofe.architectures import ARCHITECTURES, Architecture, architecture_named
from nofe.architectures.matched import MATCHED
from nofe.architectures.zoo import SMALL_IMAGES
from nofe.config import BaseConfig, DataConfig, RunConfig, SpecialtiesConfig, as_setting, from_json, with_settings
from nofe.data.batches import Augmentation
from nofe.errors import UserError
from nofe.experts.stage import ExpertsConfig
from nofe.generalist import GeneralistConfig
from nofe.runs import CONFIG, Run, no_run_in
from nofe.suggestions import did_you_mean
from nofe.training.recipe import Recipe


@dataclass(frozen=True)
class Recipes:
    """How one network is trained, in the paper's three roles."""

    generalist: GeneralistConfig
    experts: ExpertsConfig
    base: Recipe | None = None  # the paper's own for the base, where it differs from the experts'
    rule: str = "fully-balanced"
    precision: str = "auto"


# Activations are as large as pixels, 0..255, in networks that nothing normalises, and bfloat16 has eight bits: the
# small ones, whose runs it makes no shorter (`seconds` in results/), keep TF32. The table `precision` of `nofe
# reproduce` shows what it costs.
NOT_NORMALISED = "tf32"

# AlexNet-Quick mirrors in its generalist only, as in the release.
QUICK = Recipes(
    generalist=GeneralistConfig(
        epochs=8, batch=100, rate=0.001, weight_decay=0.004, augmentation=Augmentation(mirror=True)
    ),
    experts=ExpertsConfig(epochs=12, drops=(8 / 12, 10 / 12), batch=100, rate=0.001, weight_decay=0.004),
    precision=NOT_NORMALISED,
)
ALEXNET = Recipes(
    generalist=GeneralistConfig(
        epochs=60, batch=100, rate=0.001, weight_decay=0.004, augmentation=Augmentation(mirror=True)
    ),
    experts=ExpertsConfig(
        epochs=140,
        drops=(120 / 140, 130 / 140),
        batch=100,
        rate=0.001,
        weight_decay=0.004,
        augmentation=Augmentation(mirror=True),
    ),
    precision=NOT_NORMALISED,
)
# The release's rates: all its VGG files are on the 0.01 scale, the paper prints a tenth of it.
VGG11 = Recipes(
    generalist=GeneralistConfig(
        epochs=60, batch=128, rate=0.01, weight_decay=5e-4, augmentation=Augmentation(padding=4, mirror=True)
    ),
    experts=ExpertsConfig(
        epochs=140,
        drops=(120 / 140, 130 / 140),
        batch=128,
        rate=0.01,
        weight_decay=5e-4,
        augmentation=Augmentation(padding=4, mirror=True),
    ),
    base=Recipe(
        epochs=200,
        drops=(120 / 140, 130 / 140),  # "lowered twice": the experts' proportions, as no others are given
        batch=128,
        rate=0.01,
        weight_decay=5e-4,
        augmentation=Augmentation(padding=4, mirror=True),
    ),
)
# The release's 49,000, 11,000 and 5,000 steps of 128 images; the paper counts them as if the batch were 100. The base's
# 220, 10 and 30 epochs, which the paper alone has, are read in the same way: as 130,000 steps, HD-CNN's number, too.
# The generalist's 200 are not (paper-map.md, row 4).
NIN = Recipes(
    generalist=GeneralistConfig(
        epochs=200, batch=128, rate=0.01, weight_decay=1e-4, augmentation=Augmentation(26, mirror=True)
    ),
    experts=ExpertsConfig(
        epochs=166,
        drops=(125 / 166, 153 / 166),
        batch=128,
        rate=0.01,
        weight_decay=1e-3,
        augmentation=Augmentation(26, mirror=True),
    ),
    base=Recipe(
        epochs=333,
        drops=(282 / 333, 295 / 333),
        batch=128,
        rate=0.01,
        weight_decay=1e-3,
        augmentation=Augmentation(26, mirror=True),
    ),
)
# The paper's base has a fifth of the experts' weight decay: both can be run (base.by=both). The experts' recipe, and
# so the base that they are compared with, decays batch norm as well: docs/decisions/0009-batch-norm-in-resnet56.md.
RESNET56 = Recipes(
    generalist=GeneralistConfig(
        epochs=12, batch=128, rate=0.01, weight_decay=1e-4, augmentation=Augmentation(28, mirror=True)
    ),
    experts=ExpertsConfig(
        epochs=60,
        drops=(0.5, 0.75),
        batch=128,
        rate=0.1,
        weight_decay=5e-4,
        decay_norms=True,
        augmentation=Augmentation(28, mirror=True),
    ),
    base=Recipe(
        epochs=60,
        drops=(0.5, 0.75),
        batch=128,
        rate=0.1,
        weight_decay=1e-4,
        augmentation=Augmentation(28, mirror=True),
    ),
)
ALEXNET_CAFFE = Recipes(
    generalist=GeneralistConfig(
        epochs=20,
        batch=256,
        rate=0.01,
        weight_decay=5e-4,
        augmentation=Augmentation(227, mirror=True),
        update_every=0.2,
    ),
    experts=ExpertsConfig(
        epochs=60,
        drops=(1 / 3, 2 / 3),
        batch=256,
        rate=0.01,
        weight_decay=5e-4,
        augmentation=Augmentation(227, mirror=True),
    ),
    base=Recipe(
        epochs=80,
        drops=(1 / 3, 2 / 3),
        batch=256,
        rate=0.01,
        weight_decay=5e-4,
        augmentation=Augmentation(227, mirror=True),
    ),
    precision=NOT_NORMALISED,
)
# For the embedded data set, on a processor; chosen on glyphs of another seed than the default's.
SMALL = Recipes(
    generalist=GeneralistConfig(
        epochs=5,
        batch=64,
        rate=0.01,
        optimizer="sgd",
        weight_decay=5e-4,
        decay_norms=True,
        augmentation=Augmentation(padding=2),
        update_every=0.5,
        confusion_images=3000,
    ),
    experts=ExpertsConfig(
        epochs=7,
        drops=(5 / 7, 6 / 7),
        batch=64,
        rate=0.01,
        optimizer="sgd",
        weight_decay=5e-4,
        decay_norms=True,
        augmentation=Augmentation(padding=2),
    ),
    rule="exact",  # settles within these few epochs, where the paper's greedy does not
)
RECIPES: dict[str, Recipes] = {
    "small": SMALL,
    "alexnet-c100": ALEXNET,
    "alexnet-quick-c100": QUICK,
    "vgg11-c100": VGG11,
    "nin-c100": NIN,
    "resnet56-c100": RESNET56,
    "alexnet-caffe": ALEXNET_CAFFE,
}
# A plain network of the experts' size is trained as the experts are.
RECIPES |= {
    architecture.name: next(RECIPES[name] for name in RECIPES if architecture.name.startswith(f"{name}-"))
    for architecture in MATCHED
}
assert RECIPES.keys() == ARCHITECTURES.keys()


def _alike(generalist_epochs: int, experts_epochs: int, **recipe: Any) -> Recipes:
    """Generalist and experts by one recipe but for its length."""
    return Recipes(
        generalist=GeneralistConfig(epochs=generalist_epochs, **recipe),
        experts=ExpertsConfig(epochs=experts_epochs, **recipe),
    )


# Recipes of today, by name. They suit networks with normalisation; `recipes_named` fits their crops to the network.
# What residual networks are trained by on CIFAR. Norms are decayed, too: docs/decisions/0009-batch-norm-in-resnet56.md.
MODERN = _alike(
    40,
    200,
    batch=128,
    rate=0.1,
    weight_decay=5e-4,
    decay_norms=True,
    optimizer="sgd",
    nesterov=True,
    schedule="cosine",
    warmup_epochs=5.0,
    label_smoothing=0.1,
    augmentation=Augmentation(padding=4, mirror=True),
)
# What networks of attention are trained by from scratch (DeiT, timm), for a smaller batch.
ADAMW = _alike(
    40,
    200,
    batch=128,
    rate=1e-3,
    weight_decay=0.05,
    optimizer="adamw",
    schedule="cosine",
    warmup_epochs=5.0,
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
    ema=0.999,
    augmentation=Augmentation(padding=4, mirror=True, randaugment=2, erasing=0.25),
)
# For a trunk that begins with trained weights, which the rates above would undo; suits any network, attention too.
FINETUNE = _alike(
    12,
    30,
    batch=128,
    rate=2e-4,
    weight_decay=0.05,
    optimizer="adamw",
    schedule="cosine",
    warmup_epochs=0.5,  # so that a run of one epoch has room for it
    label_smoothing=0.1,
    augmentation=Augmentation(padding=4, mirror=True),
)
PAPER = "paper"
BY_NAME = {"modern": MODERN, "adamw": ADAMW, "finetune": FINETUNE}
SUMMARIES = {
    PAPER: "the architecture's own: for a network of the paper the paper's",
    "modern": "SGD with Nesterov, cosine after warm-up, smoothed labels, 200 epochs",
    "adamw": "AdamW, cosine after warm-up, RandAugment, erasing, mixup, cutmix, averaged weights, 200 epochs",
    "finetune": "AdamW at a low rate, cosine after warm-up, 30 epochs; the default with --pretrained or --weights",
}
DEMO_DATASET, DEMO_ARCHITECTURE = "glyphs", "small"


def recipes_for(architecture: Architecture) -> Recipes:
    """The paper's for its networks; for any other the schedule of ResNet56, which suits most with batch norm.

    By PyTorch's SGD: Caffe's keeps the velocity of the higher rate for ten steps after a drop, and where images are few
    these are epochs, of which a short training has none left to recover in.
    """
    if architecture.name in RECIPES:
        return RECIPES[architecture.name]
    size = architecture.input_size
    augmentation = Augmentation(size, padding=size // 8 if size <= SMALL_IMAGES else 0, mirror=True)
    return Recipes(
        generalist=replace(
            RESNET56.generalist, optimizer="sgd", weight_decay=5e-4, decay_norms=True, augmentation=augmentation
        ),
        experts=replace(RESNET56.experts, optimizer="sgd", augmentation=augmentation),
        rule="exact",
    )


def recipes_named(name: str, architecture: Architecture) -> Recipes:
    """A recipe by name, with crops that the network reads; rule and precision stay the architecture's."""
    own = recipes_for(architecture)
    if name == PAPER:
        return own
    if name not in BY_NAME:
        raise UserError(f"--recipe {name}: there is none; {did_you_mean(name, SUMMARIES)}")
    chosen, crop = BY_NAME[name], architecture.input_size
    padding = chosen.experts.augmentation.padding if crop <= SMALL_IMAGES else 0
    fitted = replace(chosen.experts.augmentation, crop=crop, padding=padding)
    return replace(
        own,
        generalist=replace(chosen.generalist, augmentation=fitted),
        experts=replace(chosen.experts, augmentation=fitted),
        base=None,
    )


def recipe_for(weights: str) -> str:
    """The recipe where none is named: the architecture's own is for random weights only."""
    return "finetune" if weights else PAPER


def default_run(architecture: str = DEMO_ARCHITECTURE, dataset: str = DEMO_DATASET, recipe: str = PAPER) -> RunConfig:
    """By the recipe of the architecture, for a network of the paper the paper's, or by another one of SUMMARIES."""
    recipes = recipes_named(recipe, architecture_named(architecture))
    return RunConfig(
        architecture=architecture,
        precision=recipes.precision,
        data=DataConfig(name=dataset),
        specialties=SpecialtiesConfig(rule=recipes.rule),
        base=BaseConfig(paper=recipes.base or base_by(recipes.experts)),
        generalist=recipes.generalist,
        experts=recipes.experts,
    )


def configured(chosen: Mapping[str, Any], settings: Sequence[str] = ()) -> RunConfig:
    """The default run with what is chosen, by field and with None for no choice; then with what --set takes.

    `recipe` is among what can be chosen; without it, it is the architecture's, or where weights are given `finetune`.
    """
    given = [*as_settings({name: value for name, value in chosen.items() if name != "recipe"}), *settings]
    by_field = dict(setting.split("=", 1) for setting in given if "=" in setting)  # however they were chosen
    config = default_run(
        by_field.get("architecture", DEMO_ARCHITECTURE),
        by_field.get("data.name", DEMO_DATASET),
        chosen.get("recipe") or recipe_for(by_field.get("adapt.weights", "")),
    )
    return with_settings(config, given)


def configured_or_resumed(chosen: Mapping[str, Any], settings: Sequence[str], going_on_in: Path | None) -> RunConfig:
    """The configuration of the run that is gone on with, if there is one, or a new one, with what is chosen."""
    if going_on_in is None or not (going_on_in / CONFIG).exists():
        if going_on_in is not None and not _names_what_to_train(chosen, settings):
            raise UserError(f"{no_run_in(going_on_in)}, or a data set to begin a run on")
        return configured(chosen, settings)
    if (recipe := chosen.get("recipe")) is not None:
        raise UserError(f"--recipe {recipe}: the run in {going_on_in} has its own; leave it out to go on with that run")
    return with_settings(from_json(Run(going_on_in).read_config()), [*as_settings(chosen), *settings])


def _names_what_to_train(chosen: Mapping[str, Any], settings: Sequence[str]) -> bool:
    """Whether somebody who goes on where no run is can have meant a new one."""
    fields = {name for name, value in chosen.items() if value is not None}
    fields |= {setting.partition("=")[0] for setting in settings}
    return bool(fields & {"data.name", "architecture"})


def as_settings(chosen: Mapping[str, Any]) -> list[str]:
    """What --set takes, from values by field; None is no choice."""
    return [as_setting(name, value) for name, value in chosen.items() if value is not None]


def base_by(experts: ExpertsConfig) -> Recipe:
    """The experts' recipe for a base: the fields that every Recipe has."""
    return Recipe(**{field.name: getattr(experts, field.name) for field in fields(Recipe)})
