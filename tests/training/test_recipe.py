"""The paper's schedules, typed in from reference.md (its section 2, and the choices of its section 5)."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nofe.architectures import ARCHITECTURES
from nofe.architectures.matched import MATCHED
from nofe.config import SpecialtiesConfig
from nofe.data.batches import Augmentation, Batches, DeviceImages
from nofe.data.dataset import ImageSet
from nofe.errors import UserError
from nofe.generalist import GeneralistConfig
from nofe.recipes import RECIPES, Recipes, base_by, configured, default_run
from nofe.training.recipe import Recipe, rate_in_epoch, training_steps

# Epochs at each rate; weight decay; batch; crop, padding, mirror.
EXPECTED = {
    ("alexnet-c100", "generalist"): ([(60, 1e-3)], 0.004, 100, (32, 0, True)),
    ("alexnet-c100", "experts"): ([(120, 1e-3), (10, 1e-4), (10, 1e-5)], 0.004, 100, (32, 0, True)),
    ("alexnet-c100", "base"): ([(120, 1e-3), (10, 1e-4), (10, 1e-5)], 0.004, 100, (32, 0, True)),
    ("alexnet-quick-c100", "generalist"): ([(8, 1e-3)], 0.004, 100, (32, 0, True)),
    ("alexnet-quick-c100", "experts"): ([(8, 1e-3), (2, 1e-4), (2, 1e-5)], 0.004, 100, (32, 0, False)),
    ("alexnet-quick-c100", "base"): ([(8, 1e-3), (2, 1e-4), (2, 1e-5)], 0.004, 100, (32, 0, False)),
    # Row 5: the release's rates, ten times the paper's. The split of the base's 200 epochs is not given.
    ("vgg11-c100", "generalist"): ([(60, 0.01)], 0.0005, 128, (32, 4, True)),
    ("vgg11-c100", "experts"): ([(120, 0.01), (10, 1e-3), (10, 1e-4)], 0.0005, 128, (32, 4, True)),
    ("vgg11-c100", "base"): ([(171, 0.01), (15, 1e-3), (14, 1e-4)], 0.0005, 128, (32, 4, True)),
    # Rows 7 to 9: 49,000, 11,000 and 5,000 steps of 128 images are 125.4, 28.2 and 12.8 epochs; the base's 110,000,
    # 5,000 and 15,000 are 282.1, 12.8 and 38.5.
    ("nin-c100", "generalist"): ([(200, 0.01)], 0.0001, 128, (26, 0, True)),
    ("nin-c100", "experts"): ([(125, 0.01), (28, 1e-3), (13, 1e-4)], 0.001, 128, (26, 0, True)),
    ("nin-c100", "base"): ([(282, 0.01), (13, 1e-3), (38, 1e-4)], 0.001, 128, (26, 0, True)),
    # Row 12: the paper's weight decays differ between experts and base.
    ("resnet56-c100", "generalist"): ([(12, 0.01)], 0.0001, 128, (28, 0, True)),
    ("resnet56-c100", "experts"): ([(30, 0.1), (15, 0.01), (15, 1e-3)], 0.0005, 128, (28, 0, True)),
    ("resnet56-c100", "base"): ([(30, 0.1), (15, 0.01), (15, 1e-3)], 0.0001, 128, (28, 0, True)),
    # Row 34. The split of the base's 80 epochs is not given.
    ("alexnet-caffe", "generalist"): ([(20, 0.01)], 0.0005, 256, (227, 0, True)),
    ("alexnet-caffe", "experts"): ([(20, 0.01), (20, 1e-3), (20, 1e-4)], 0.0005, 256, (227, 0, True)),
    ("alexnet-caffe", "base"): ([(27, 0.01), (26, 1e-3), (27, 1e-4)], 0.0005, 256, (227, 0, True)),
}


def recipe_of(name: str, role: str) -> Recipe:
    recipes: Recipes = RECIPES[name]
    found = {"generalist": recipes.generalist, "experts": recipes.experts}
    return found[role] if role != "base" else recipes.base or base_by(recipes.experts)


def levels(recipe: Recipe) -> list[tuple[int, float]]:
    """Epochs at each rate, in order."""
    found: list[tuple[int, float]] = []
    for epoch in range(recipe.epochs):
        rate = rate_in_epoch(recipe, epoch)
        epochs = found.pop()[0] if found and found[-1][1] == rate else 0
        found.append((epochs + 1, rate))
    return found


@pytest.mark.parametrize(("name", "role"), EXPECTED)
def test_the_schedule_of_every_network(name: str, role: str) -> None:
    schedule, weight_decay, batch, (crop, padding, mirror) = EXPECTED[name, role]
    recipe = recipe_of(name, role)
    found = levels(recipe)
    assert [epochs for epochs, _ in found] == [epochs for epochs, _ in schedule]
    assert [rate for _, rate in found] == pytest.approx([rate for _, rate in schedule], rel=1e-12)
    assert (recipe.weight_decay, recipe.batch, recipe.momentum) == (weight_decay, batch, 0.9)
    assert recipe.augmentation == Augmentation(crop, padding, mirror)
    # The release spares batch norm; why the experts of ResNet56 do not: docs/decisions/0009-batch-norm-in-resnet56.md.
    assert recipe.decay_norms == ((name, role) == ("resnet56-c100", "experts"))


def test_every_network_of_the_paper_is_in_the_table() -> None:
    others = {"small", *(matched.name for matched in MATCHED)}
    assert {name for name, _ in EXPECTED} == ARCHITECTURES.keys() - others


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_network_reads_is_what_the_recipes_crop(name: str) -> None:
    for role in ("generalist", "experts", "base"):
        assert recipe_of(name, role).augmentation.crop == ARCHITECTURES[name].input_size


@pytest.mark.parametrize("name", RECIPES)
def test_the_default_run_is_the_recipe_of_its_network(name: str) -> None:
    run = default_run(name, "cifar100")
    assert (run.generalist, run.experts, run.base.paper) == tuple(
        recipe_of(name, role) for role in ("generalist", "experts", "base")
    )
    assert (run.architecture, run.data.name) == (name, "cifar100")
    # Decision 5: compared with a base by the same recipe; the paper's own on request.
    assert run.base.by == "experts"
    assert (run.generalist.start, run.experts.start) == ("random", "generalist")


@pytest.mark.parametrize("name", ["alexnet-c100", "resnet56-c100"])
def test_a_network_that_is_chosen_by_its_field_has_its_own_recipe(name: str) -> None:
    assert configured({}, [f"architecture={name}"]) == default_run(name)
    assert configured({"architecture": "small"}, [f"architecture={name}", "seed=3"]) == configured(
        {"architecture": name, "seed": 3}
    )
    with pytest.raises(UserError, match="--set architecture: has no '='"):
        configured({}, ["architecture"])


def test_how_specialties_are_learned() -> None:
    """Rows 15 to 20: 10,000 training images, every epoch; a fifth of an epoch on ImageNet; lambda 1000, one sweep."""
    for name in EXPECTED.keys() & {(name, "generalist") for name in RECIPES}:
        generalist = RECIPES[name[0]].generalist
        assert generalist.confusion_images == 10_000
        assert generalist.update_every == (0.2 if name[0] == "alexnet-caffe" else 1)
        assert generalist.settle == 0
    assert asdict(SpecialtiesConfig()) == {
        "count": 10,
        "rule": "fully-balanced",
        "strength": 1000,
        "sweeps": 1,
        "groups": "",
    }


def test_the_base_by_the_experts_recipe_is_trained_like_the_experts() -> None:
    for recipes in RECIPES.values():
        experts = asdict(recipes.experts)
        del experts["start"]
        assert asdict(base_by(recipes.experts)) == experts


@given(epochs=st.integers(1, 5), batch=st.integers(1, 30), count=st.integers(1, 40))
def test_a_training_has_as_many_steps_as_its_batches_give(epochs: int, batch: int, count: int) -> None:
    """With fewer images than a batch wants, too."""
    recipe = Recipe(epochs=epochs, batch=batch, rate=0.1, weight_decay=0, augmentation=Augmentation(crop=2))
    images = ImageSet(np.zeros((count, 3, 2, 2), dtype=np.uint8), np.zeros(count, dtype=np.int64))
    on_device = DeviceImages(images, np.zeros((3, 2, 2), dtype=np.float32), torch.device("cpu"))
    batches = Batches(on_device, recipe.augmentation, batch=recipe.batch, seed=0, stage="base")
    assert training_steps(recipe, count) == recipe.epochs * batches.steps_per_epoch


@pytest.mark.parametrize("role", ["experts", "base"])
@pytest.mark.parametrize("name", RECIPES)
@given(epochs=st.integers(1, 400))
def test_a_shorter_or_longer_training_keeps_its_shape(name: str, role: str, epochs: int) -> None:
    recipe = recipe_of(name, role)
    share_at = {rate: count / recipe.epochs for count, rate in levels(recipe)}
    changed = {rate: count for count, rate in levels(replace(recipe, epochs=epochs))}
    assert sum(changed.values()) == epochs
    assert list(changed) == sorted(changed, reverse=True)
    assert changed.keys() <= share_at.keys()
    for rate, share in share_at.items():
        # Both ends of a level are rounded, in this schedule and in the one it is compared with.
        assert abs(changed.get(rate, 0) - share * epochs) <= 1 + epochs / recipe.epochs
    assert rate_in_epoch(replace(recipe, epochs=epochs), 0) == recipe.rate


@pytest.mark.parametrize("factor", [2, 3, 10])
@pytest.mark.parametrize(("name", "role"), EXPECTED)
def test_a_training_of_twice_the_epochs_stays_twice_as_long_at_each_rate(name: str, role: str, factor: int) -> None:
    recipe = recipe_of(name, role)
    exact = all(abs(drop * recipe.epochs - round(drop * recipe.epochs)) < 1e-9 for drop in recipe.drops)
    longer = levels(replace(recipe, epochs=factor * recipe.epochs))
    if exact:
        assert longer == [(factor * epochs, rate) for epochs, rate in levels(recipe)]
    else:
        assert (name, role) in {("vgg11-c100", "base"), ("alexnet-caffe", "base")}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs=0: out of range; train at least 1 epoch"),
        ({"batch": 0}, "batch=0: out of range; use at least 1 image a batch"),
        ({"rate": 0.0}, "rate=0.0: out of range; use a learning rate above 0"),
        ({"rate": -0.1}, "rate=-0.1: out of range"),
        ({"rate": float("nan")}, "rate=nan: out of range"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001: out of range; use 0 for none"),
        ({"momentum": 1.0}, "momentum=1.0: out of range; use 0 to below 1"),
        ({"momentum": -0.1}, "momentum=-0.1: out of range"),
        ({"drops": (0.75, 0.5)}, "give rising fractions of the epochs"),
        ({"drops": (0.5, 1.0)}, "give rising fractions of the epochs"),
        ({"drops": (0.0,)}, "give rising fractions of the epochs"),
        ({"drops": (8, 10)}, "give rising fractions of the epochs"),
    ],
)
def test_values_out_of_range(wrong: dict[str, object], message: str) -> None:
    good = {"epochs": 3, "batch": 10, "rate": 0.1, "weight_decay": 0.0}
    assert Recipe(**good)  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        Recipe(**(good | wrong))  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"update_every": 0.0}, {"update_every": -1.0}, {"confusion_images": 0}, {"settle": -1}]
)
def test_values_out_of_range_of_the_generalist(wrong: dict[str, object]) -> None:
    [name] = wrong
    with pytest.raises(UserError, match=f"^generalist.{name}="):
        GeneralistConfig(**({"epochs": 3, "batch": 10, "rate": 0.1, "weight_decay": 0.0} | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(("crop", "padding"), [(0, 0), (-1, 0), (32, -1)])
def test_values_out_of_range_of_the_augmentation(crop: int, padding: int) -> None:
    with pytest.raises(UserError, match="at least 1 pixel"):
        Augmentation(crop, padding)
