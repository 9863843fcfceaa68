"""The configuration of a run in words, and the commands to go on with."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from nofe.report.record import Record
from nofe.report.text import gain_in_words, network_name, repeated_in_words, span_in_words
from nofe.specialties import rule_named
from nofe.suggestions import all_of, counted

RECIPE_HEAD = (
    "network", "epochs", "batch", "learning rate", "momentum", "weight decay", "augmentation", "also", "begins with",
)  # fmt: skip
STARTS = {
    "random": "random weights",
    "scratch": "random weights",
    "base": "the base's trunk",
    "generalist": "the generalist's trunk",
}


def outcome(record: Record) -> str:
    """The run in one sentence."""
    experts, base = record.networks["experts"]["accuracy"], record.networks.get("base")
    said = f"{record.specialties.count} experts recognise {experts:.2%} of {record.test_images:,} {record.judged_by}"
    if base is None:
        return f"{said}. No base was trained by the same recipe, so there is no gain to report."
    side = gain_in_words(experts, base["accuracy"], record.test_images, "images")
    return f"{said}, and are {side}, which by the same recipe recognises {base['accuracy']:.2%}."


def judged(record: Record) -> str:
    """What the figures are of, and what they are for."""
    said = f"Accuracy on the {record.judged_by} after the last epoch"
    if record.config["data"]["hold_out"]:
        return f"{said}, for choosing between settings: the figure to report is that of a run without data.hold_out."
    return f"{said}; nothing was chosen by it."


def what_was_trained(record: Record) -> list[tuple[str, str]]:
    """A name and a sentence for every choice but the recipes."""
    config = record.config
    return [
        ("Data", _data(record)),
        ("Architecture", _architecture(config)),
        ("Experts", _experts(record)),
        ("Rule", _rule(config["specialties"])),
        ("Alternation", _alternation(config)),
        ("Seed", f"{config['seed']}"),
    ]


def _data(record: Record) -> str:
    data, images = record.config["data"], record.environment["data"]
    words = f"{data['name']}: {record.specialties.classes:,} classes, "
    if "images" in images:  # of older runs they were not counted
        words += f"{images['images']['train']:,} training and "
    words += f"{record.test_images:,} {record.judged_by}"
    if data["hold_out"]:
        words += f" ({data['hold_out']:.0%} of the training images)"
    if left_out := sum(map(len, images.get("unreadable", {}).values())):
        words += f", without {counted(left_out, 'unreadable image')}"
    if repeated := images.get("repeated"):
        words += f"; {repeated_in_words(repeated, record.judged_by)}"
    return f"{words}; data seed {data['seed']}, fingerprint {images['fingerprint']}"


def _architecture(config: dict[str, Any]) -> str:
    adapt = config.get("adapt", {})  # of older runs, none
    said = {
        f"experts from {adapt.get('cut')} on": adapt.get("cut"),
        f"branches {adapt.get('branch_width', 1):g} as wide": adapt.get("branch_width", 1) != 1,
        f"branches narrowed to {adapt.get('parameters', 0):,} parameters in all": adapt.get("parameters"),
    }
    return "; ".join([config["architecture"], *(words for words, holds in said.items() if holds)])


def _experts(record: Record) -> str:
    asked, sizes = record.config["specialties"]["count"], record.specialties.sizes
    words = f"K = {len(sizes)}, with {span_in_words(sizes.tolist())} classes each"
    as_asked = len(sizes) == asked or record.config["specialties"]["rule"] == "groups"
    return words if as_asked else f"{words}; {asked} were asked for, the rule left the others empty"


def _rule(config: dict[str, Any]) -> str:
    words = f"{config['rule']} ({rule_named(config['rule']).summary})"
    if config["rule"] == "elasso":
        words += f"; strength {config['strength']:g}, {config['sweeps'] or 'unlimited'} sweeps at each update"
    if config["rule"] == "groups":
        words += f": {config['groups']}"
    return words


def _alternation(config: dict[str, Any]) -> str:
    if not rule_named(config["specialties"]["rule"]).updates:
        return "none: the specialties were fixed before the generalist was trained"
    generalist = config["generalist"]
    every = generalist["update_every"]
    words = f"the specialties were updated every {'epoch' if every == 1 else f'{every:g} epochs'}"
    words += f" on up to {generalist['confusion_images']:,} training images"
    return f"{words}, until {generalist['settle']} updates moved no class" if generalist["settle"] else words


def recipe_rows(record: Record) -> list[tuple[str, ...]]:
    """How each network was trained, under RECIPE_HEAD."""
    config = record.config
    adapt = config.get("adapt", {})  # of older runs, none
    weights = {"": "random weights", "pretrained": "pretrained weights"}.get(given := adapt.get("weights", ""), given)
    starts = STARTS | {"random": weights}
    recipes = {
        "base": (config["experts"], weights),
        "base-paper": (config["base"]["paper"], weights),
        "generalist": (config["generalist"], starts[config["generalist"]["start"]]),
        "experts": (config["experts"], starts[config["experts"]["start"]]),
    }
    if adapt.get("frozen_trunk"):
        recipes = {stage: (recipe, f"{start}; the trunk frozen") for stage, (recipe, start) in recipes.items()}
    return [(network_name(stage, record.specialties.count), *_recipe(*recipes[stage])) for stage in record.networks]


def _recipe(recipe: dict[str, Any], begins_with: str) -> tuple[str, ...]:
    falls = [f"{max(1, round(drop * recipe['epochs']))}" for drop in recipe["drops"]]
    return (
        f"{recipe['epochs']}",
        f"{recipe['batch']}",
        f"{recipe['rate']:g}" + (f", a tenth after {_epochs(falls)}" if falls else ""),
        f"{recipe['momentum']:g}",
        f"{recipe['weight_decay']:g}" + _also_decayed(recipe),
        _augmentation(recipe["augmentation"]),
        "; ".join(beyond_the_paper(recipe)) or "-",
        begins_with,
    )


def _also_decayed(recipe: Mapping[str, Any]) -> str:
    if not recipe.get("decay_norms"):
        return ""
    is_caffes = recipe.get("optimizer", "caffe-sgd") == "caffe-sgd"  # which has a factor of its own for each layer
    return ", on batch norm too" if is_caffes else ", on norms and biases too"


def beyond_the_paper(recipe: Mapping[str, Any]) -> list[str]:
    """What a recipe has that the paper's do not; those of older files lack the fields."""
    augmentation = recipe["augmentation"]
    sgd = "SGD with Nesterov's momentum" if recipe.get("nesterov") else "SGD as PyTorch does it"
    warmup, smoothing = recipe.get("warmup_epochs", 0), recipe.get("label_smoothing", 0)
    count, erasing = augmentation.get("randaugment", 0), augmentation.get("erasing", 0)
    mixed = [f"{name} {recipe[name]:g}" for name in ("mixup", "cutmix") if recipe.get(name)]
    said = {
        {"sgd": sgd, "adamw": "AdamW"}.get(recipe.get("optimizer", "caffe-sgd"), ""): True,
        f"warm-up of {warmup:g} epochs": warmup,
        "cosine": recipe.get("schedule") == "cosine",
        f"labels smoothed by {smoothing:g}": smoothing,
        f"RandAugment, {count} at {augmentation.get('magnitude', 0)}": count,
        "TrivialAugment": augmentation.get("trivialaugment"),
        f"{erasing:.0%} erased": erasing,
        " and ".join(mixed): mixed,
        f"weights averaged with decay {recipe.get('ema', 0):g}": recipe.get("ema"),
    }
    return [words for words, holds in said.items() if words and holds]


def _epochs(numbers: list[str]) -> str:
    return f"{'epochs' if len(numbers) > 1 else 'epoch'} {all_of(numbers)}"


def _augmentation(augmentation: dict[str, Any]) -> str:
    words = f"crops of {augmentation['crop']} pixels"
    if augmentation["padding"]:
        words += f" after {augmentation['padding']} of padding"
    return f"{words}, mirrored" if augmentation["mirror"] else words


def commands(record: Record) -> list[tuple[str, str]]:
    """What each is for, and the line to type."""
    run = shlex.quote(str(record.path))
    return [
        (f"Judge the run on its {record.judged_by} again", f"nofe evaluate {run}"),
        ("Name what is in your own pictures", f"nofe predict {run} PICTURE.png"),
        ("List the classes of each expert", f"nofe specialties {run}"),
        ("Write this page again", f"nofe report {run}"),
    ]


def with_another_seed(record: Record) -> str:
    """The command for a run that differs in its seed alone, with every other setting spelt out."""
    config = record.config | {"seed": record.config["seed"] + 1}
    settings = _settings({k: v for k, v in config.items() if k != "architecture"})
    chosen = [f"--architecture={config['architecture']}", f"--dataset={config['data']['name']}"]
    rest = [f"--set={name}={value}" for name, value in settings if name != "data.name"]
    return " ".join(["nofe train", *map(shlex.quote, [*chosen, *rest])])


def _settings(config: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Every field of the configuration, as --set wants it."""
    found: list[tuple[str, str]] = []
    for name, value in config.items():
        if isinstance(value, dict):
            found += _settings(value, f"{path}{name}.")
        else:
            found.append((f"{path}{name}", value if isinstance(value, str) else json.dumps(value)))
    return found
