"""What a run says of its images before it trains."""

import json
from typing import Any

import pytest

from nofe.architectures import ARCHITECTURES
from nofe.recipes import RECIPES
from nofe.report.against import difference_in_words
from nofe.report.record import Alone
from nofe.report.text import (
    comparison,
    evaluation_in_words,
    gain_in_words,
    images_in_words,
    listed,
    prediction_in_words,
    quoted,
    specialties_that_stayed,
    that_learned_nothing,
)

PHOTOS: dict[str, Any] = {
    "dataset": "folder:birds",
    "classes": 6,
    "train": 1078,
    "test": 30,
    "held_out": False,
    "stored": 32,
    "read": 32,
    "usual": 375,
    "architecture": "small",
    "repeated": {},
    "larger_batches": {},
}
LINE = "folder:birds: 6 classes, 1,078 training and 30 test images of 32 x 32 pixels"


def test_images_in_one_line_with_a_hint_where_details_are_lost() -> None:
    line, hint = images_in_words(PHOTOS).splitlines()
    assert line == LINE
    assert "about 375 pixels a side, and small reads 32" in hint
    assert "--architecture timm:resnet18 --pretrained" in hint


@pytest.mark.parametrize("change", [{"usual": None}, {"usual": 40}])
def test_no_hint_without_reason(change: dict[str, Any]) -> None:
    assert images_in_words(PHOTOS | change) == LINE


def test_images_that_are_held_out_are_no_test_images() -> None:
    assert "1,078 training and 30 held-out training images of" in images_in_words(PHOTOS | {"held_out": True})


def test_test_images_that_are_trained_on_are_told() -> None:
    line, told = images_in_words(PHOTOS | {"usual": None, "repeated": {"val/a.jpg": "train/b.jpg"}}).splitlines()
    assert line == LINE
    assert told.startswith("1 of the test images is among those to train on, too, pixel for pixel (first: val/a.jpg is")


def test_batches_that_are_cut_are_told() -> None:
    said = images_in_words(PHOTOS | {"usual": None, "larger_batches": {"experts.batch": 2048}})
    assert said == f"{LINE}\nexperts.batch=2048: more than there are training images, so a step sees all 1,078 of them"


def test_a_network_that_reads_crops() -> None:
    said = images_in_words(PHOTOS | {"stored": 256, "read": 224, "usual": 4000})
    assert said.endswith("test images of 256 x 256 pixels, read as crops of 224 x 224")
    line, hint = images_in_words(PHOTOS | {"stored": 64, "read": 32, "usual": None}).splitlines()
    assert line.endswith("of 64 x 64 pixels, read as crops of 32 x 32")
    assert hint.startswith("Of each image of 64 pixels a side small reads only 32, when it is judged the middle; bring")


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_leaves_that_much_of_an_image_unread(name: str) -> None:
    sizes = {"stored": ARCHITECTURES[name].image_size, "read": RECIPES[name].experts.augmentation.crop}
    assert "reads only" not in images_in_words(PHOTOS | sizes)


def test_a_comma_in_a_name_is_no_separator() -> None:
    assert listed(["crow", "jay, blue"]) == 'crow, "jay, blue"'


@pytest.mark.parametrize(("name", "shown"), [("crow", "crow"), ("jay, blue", '"jay, blue"'), ('é, "x"', r'"é, \"x\""')])
def test_a_name_with_a_comma_is_one_in_a_list(name: str, shown: str) -> None:
    assert quoted(name) == shown


def test_the_last_line_of_a_run_counts_its_images() -> None:
    network = {"parameters": 1, "epochs": 1, "seconds": 1}
    networks = {"base": network | {"accuracy": 8 / 26}, "experts": network | {"accuracy": 15 / 26}}
    summary: dict[str, Any] = {"networks": networks, "specialties": [{"images": 20}, {"images": 6}]}
    summary["config"] = {"data": {"hold_out": 0.0}}
    assert comparison(summary).endswith("the experts are 26.92 points above the base (7 of 26 test images).")
    summary["config"]["data"]["hold_out"] = 0.1
    assert comparison(summary).endswith("above the base (7 of 26 held-out training images).")


@pytest.mark.parametrize(
    ("experts", "said"),
    [(0.5, "as good as the base"), (0.4, "10.00 points below the base (2 of 20 images)")],
)
def test_a_gain_has_a_side(experts: float, said: str) -> None:
    assert gain_in_words(experts, 0.5, 20, "images") == said


def test_a_gain_over_a_network_that_learned_nothing_is_none() -> None:
    """It names one class, whatever it sees; where all images are of that class, it is right."""
    learned = {"accuracy": 0.6, "classes_named": 5}
    networks = {"base": {"accuracy": 0.1, "classes_named": 1}, "experts": learned, "generalist": {"accuracy": 0.1}}
    said = that_learned_nothing(networks)
    assert said is not None
    assert said.startswith("The base names the same class for all images: it learned nothing")
    assert "--set experts.rate=" in said
    assert "network of experts" not in said
    both = that_learned_nothing(dict.fromkeys(("base", "base-paper", "experts"), networks["base"]))
    assert both is not None
    assert both.startswith("The base, the base by the paper's recipe and the network of experts name the same class")
    assert "--set experts.rate=... and base.paper.rate=..." in both
    assert that_learned_nothing({"base": learned, "experts": learned}) is None
    assert that_learned_nothing({"base": {"accuracy": 1.0, "classes_named": 1}, "experts": {"accuracy": 0.1}}) is None


def test_specialties_as_they_were_drawn() -> None:
    stayed = specialties_that_stayed([{"moved": 0}, {"moved": 0}])
    assert stayed is not None
    assert stayed.startswith("no class moved in 2 updates of the specialties, so they are still the random ones")
    assert stayed.endswith("try more epochs of the generalist (--set generalist.epochs=N), or --rule spectral")
    assert (specialties_that_stayed([]) or "").startswith("there was no update of the specialties")
    assert specialties_that_stayed([{"moved": 0}, {"moved": 2}]) is None


def evaluated(classes: int, base: float, experts: float) -> dict[str, Any]:
    mistakes = {"confused_across": 0.0}
    accuracy = {"base": base, "experts": experts}
    named = [{"name": f"jay, {c}", "specialty": 0, "images": 10, "accuracy": accuracy} for c in range(classes)]
    shares = {"classes": classes, "images": 10, "accuracy": 1.0, "confused_inside": 0.0, "confused_across": 0.0}
    of = {
        stage: {"top_1": a, "top_5": 1.0, "mean_over_classes": 0.33, "confused_inside": 1 - a} | mistakes
        for stage, a in accuracy.items()
    }
    rest = {"run": "runs/birds", "images": 10, "specialties": [{"specialty": 0} | shares], "classes": named}
    return of | rest | {"pairs": [], "alone": {"experts": 3, "base": 1, "by_chance": 0.625}}


@pytest.mark.parametrize("classes", [5, 6])
def test_the_best_five_of_five_classes_are_no_figure(classes: int) -> None:
    assert ("top-5" in evaluation_in_words(evaluated(classes, 0.5, 0.7))) == (classes > 5)


@pytest.mark.parametrize("images", [10, 11])
def test_the_mean_over_classes_is_told_where_some_have_more_images(images: int) -> None:
    figures = evaluated(6, 0.5, 0.7)
    figures["classes"][0]["images"] = images
    said = evaluation_in_words(figures)
    assert ("mean over classes" in said, "33.00%" in said) == (images > 10, images > 10)


def test_a_comma_in_a_name_is_quoted_in_the_table_of_classes() -> None:
    assert '"jay, 0"' in evaluation_in_words(evaluated(6, 0.5, 0.7))


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "\x9b2J", "right\u202eleft", "bytes \udcff", " space"])
def test_a_name_cannot_do_anything_to_a_terminal(name: str) -> None:
    answer = {"file": "a.jpg", "top": [{"class": name, "probability": 1.0, "expert": 0}]}
    for said in (quoted(name), prediction_in_words(answer).splitlines()[-1]):
        assert said.replace("\n", "").isprintable()
        assert said.startswith('"')
        assert json.loads(said[: said.rindex('"') + 1]) == name
        assert said.encode()
    assert quoted("Ärger 名前 🦜") == "Ärger 名前 🦜"


def test_without_mistakes_none_are_compared() -> None:
    said = evaluation_in_words(evaluated(6, 1.0, 1.0))
    assert said.endswith("Neither the experts nor the base take any of 10 images for another class.")
    none, one = {"confused_inside": 0.0, "confused_across": 0.0}, {"confused_inside": 0.1, "confused_across": 0.0}
    assert "1 more than the base for another class of the right" in difference_in_words(none, one, 10, Alone(0, 1))
