"""Recipes of today, as data: what they are, what is refused, and what older files mean."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from nofe.architectures import ARCHITECTURES, architecture_named
from nofe.config import from_json, to_json
from nofe.data.batches import Augmentation
from nofe.errors import UserError
from nofe.experts.stage import ExpertsConfig
from nofe.recipes import ADAMW, BY_NAME, MODERN, base_by, default_run
from nofe.training.recipe import Recipe

FULL_AUGMENTATION = Augmentation(28, padding=2, mirror=True, randaugment=2, magnitude=3, erasing=0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": "adam"}, "optimizer=adam: there is none; use caffe-sgd, sgd or adamw"),
        ({"schedule": "linear"}, "schedule=linear: there is none; use steps or cosine"),
        ({"nesterov": True}, "set optimizer=sgd and a momentum, or nesterov=false"),
        ({"nesterov": True, "optimizer": "sgd", "momentum": 0.0}, "set optimizer=sgd and a momentum"),
        ({"schedule": "cosine", "drops": (0.5,)}, "a cosine has no drops; set drops=[]"),
        ({"warmup_epochs": 3.0}, "warmup_epochs=3.0: out of range; use 0 to below the 3 epochs"),
        ({"warmup_epochs": -1.0}, "warmup_epochs=-1.0: out of range"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0: out of range; use 0 to below 1"),
        ({"mixup": -0.1}, "mixup=-0.1: out of range; use 0 for none"),
        ({"cutmix": float("nan")}, "cutmix=nan: out of range; use 0 for none"),
        ({"ema": 1.0}, "ema=1.0: out of range; use 0 for none, or a decay below 1 such as 0.999"),
    ],
)
def test_values_out_of_range(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Recipe(**({"epochs": 3, "batch": 10, "rate": 0.1, "weight_decay": 0.0} | wrong))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_without_the_new_fields_is_the_papers() -> None:
    plain = Recipe(epochs=3, batch=10, rate=0.1, weight_decay=0.0)
    assert (plain.optimizer, plain.schedule, plain.nesterov) == ("caffe-sgd", "steps", False)
    numbers = ("warmup_epochs", "label_smoothing", "mixup", "cutmix", "ema")
    assert [getattr(plain, name) for name in numbers] == [0] * 5
    assert plain.augmentation == Augmentation(32, 0, False, randaugment=0, trivialaugment=False, erasing=0.0)


def test_configurations_from_before_mean_what_they_meant() -> None:
    old = to_json(default_run("resnet56-c100", "cifar100"))
    newer = {f.name for f in fields(Recipe)} - {
        "epochs", "batch", "rate", "weight_decay", "drops", "momentum", "decay_norms", "augmentation",
    }  # fmt: skip
    for recipe in (old["generalist"], old["experts"], old["base"]["paper"]):
        for name in newer:
            del recipe[name]
        recipe["augmentation"] = {name: recipe["augmentation"][name] for name in ("crop", "padding", "mirror")}
    assert from_json(old) == default_run("resnet56-c100", "cifar100")


def test_measured_results_still_load() -> None:
    files = sorted((Path(__file__).parents[2] / "results").glob("*/*.json"))
    configs = [found["config"] for file in files if "networks" in (found := json.loads(file.read_text()))]
    assert any("optimizer" not in config["experts"] for config in configs), "some are of before there was a choice"
    for config in configs:
        experts, of_then = from_json(config).experts, {"optimizer": "caffe-sgd", "schedule": "steps", "ema": 0}
        for name, value in of_then.items():
            assert getattr(experts, name) == config["experts"].get(name, value)


def test_the_base_has_every_field_of_the_experts() -> None:
    """Also those that a later version adds: none is named."""
    unlike = {
        "epochs": 7, "batch": 3, "rate": 0.2, "weight_decay": 0.3, "drops": (), "momentum": 0.8, "decay_norms": True,
        "augmentation": FULL_AUGMENTATION, "optimizer": "sgd", "nesterov": True, "schedule": "cosine",
        "warmup_epochs": 2.0, "label_smoothing": 0.2, "mixup": 0.3, "cutmix": 0.4, "ema": 0.5,
    }  # fmt: skip
    assert unlike.keys() == {field.name for field in fields(Recipe)}, "a new field: give it a value here"
    experts = ExpertsConfig(start="scratch", **unlike)  # type: ignore[arg-type]
    assert {field.name: getattr(base_by(experts), field.name) for field in fields(Recipe)} == unlike


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_named_recipe_fits_every_network_and_is_the_same_for_all_stages(architecture: str, name: str) -> None:
    run, own = default_run(architecture, "cifar100", name), default_run(architecture, "cifar100")
    size = architecture_named(architecture).input_size
    assert run.experts.augmentation.crop == run.generalist.augmentation.crop == size
    assert run.base.paper == base_by(run.experts)
    of_generalist = {field.name: getattr(run.generalist, field.name) for field in fields(Recipe)} | {"epochs": 0}
    of_experts = {field.name: getattr(run.experts, field.name) for field in fields(Recipe)} | {"epochs": 0}
    assert of_generalist == of_experts
    assert (run.specialties, run.precision, run.base.by) == (own.specialties, own.precision, own.base.by)
    assert replace(run.experts, augmentation=BY_NAME[name].experts.augmentation) == BY_NAME[name].experts


def test_what_the_named_recipes_are() -> None:
    modern, adamw = MODERN.experts, ADAMW.experts
    assert (modern.optimizer, modern.nesterov, modern.rate, modern.batch) == ("sgd", True, 0.1, 128)
    assert (modern.schedule, modern.warmup_epochs, modern.weight_decay) == ("cosine", 5, 5e-4)
    assert (modern.label_smoothing, modern.augmentation) == (0.1, Augmentation(32, padding=4, mirror=True))
    assert (adamw.optimizer, adamw.schedule, adamw.mixup, adamw.cutmix) == ("adamw", "cosine", 0.8, 1.0)


def test_a_misspelt_recipe() -> None:
    with pytest.raises(UserError, match="--recipe moden: there is none; did you mean 'modern'"):
        default_run("small", "glyphs", "moden")
