"""Runs that no table of the paper has, as sections of docs/results.md."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from nofe.config import from_json, to_json
from nofe.experiments.index import Index, age
from nofe.experiments.page import mean_and_deviation
from nofe.report.text import markdown_table
from nofe.report.words import beyond_the_paper

Result = Mapping[str, Any]
NAMES = {"generalist": "generalist, on its specialties"}  # the others are of classes


def others_section(results: Sequence[Result], index: Index) -> list[str]:
    """Runs of which no table has a network."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in sorted(results, key=age):
        if not index.in_tables(result):
            # Read and written again: a result from before a field was added is alike one with its default.
            config = to_json(from_json(result["config"]))
            config |= {"seed": None, "device": result["environment"]["device"]}
            groups[json.dumps(config, sort_keys=True)].append(result)
    if not groups:
        return []
    return ["## Other runs", *(_run_section(group) for group in sorted(groups.values(), key=_title))]


def _title(group: Sequence[Result]) -> str:
    config = group[0]["config"]
    rule = config["specialties"]
    what = "base" if _is_base_alone(group[0]) else f"K={rule['count']}, {rule['rule']}"
    return f"{config['data']['name']}: {config['architecture']}, {what}"


def _is_base_alone(result: Result) -> bool:
    return bool(result["config"].get("until") == "base")


def _run_section(group: Sequence[Result]) -> str:
    group = sorted(group, key=lambda result: int(result["config"]["seed"]))
    first = group[0]
    environment = first["environment"]
    rows = []
    for network in first["networks"]:
        figures = [100 * result["networks"][network]["accuracy"] for result in group]
        seconds = statistics.mean(result["networks"][network]["seconds"] for result in group)
        each = ", ".join(f"{figure:.2f}" for figure in figures)
        parameters = f"{first['networks'][network]['parameters']:,}"
        rows.append((NAMES.get(network, network), mean_and_deviation(figures), each, parameters, f"{seconds:.0f}"))
    lines = [
        f"### {_title(group)}",
        "",
        markdown_table(("network", "accuracy", "each run", "parameters", "seconds"), rows),
        "",
        *_gain(group),
        *_groups(group),
        f"Seeds {', '.join(str(result['config']['seed']) for result in group)}; {environment['device']}, "
        f"{environment['precision']}, torch {environment['versions']['torch']}, {environment['date'][:10]}, "
        f"commit {environment['commit']}. {_recipes(first)}",
        *(f"\n{note}" for note in sorted({result["note"] for result in group if "note" in result})),
    ]
    return "\n".join(lines)


def _recipes(result: Result) -> str:
    """Of each network that was trained; a base beside experts has theirs."""
    config = result["config"]
    recipes = {
        "experts": ("Experts", config["experts"]),
        "generalist": ("Generalist", config["generalist"]),
        "base-paper": ("Base, its own recipe", config["base"]["paper"]),
    }
    if _is_base_alone(result):
        recipes["base"] = ("Base", config["experts"])
    made = [(name, recipe) for network, (name, recipe) in recipes.items() if network in result["networks"]]
    return " ".join(f"{name}: {recipe_in_words(recipe)}." for name, recipe in made)


def _gain(group: Sequence[Result]) -> list[str]:
    if not {"base", "experts"} <= group[0]["networks"].keys():
        return []
    gains = [100 * (r["networks"]["experts"]["accuracy"] - r["networks"]["base"]["accuracy"]) for r in group]
    return [f"Experts above the base by the same recipe: {mean_and_deviation(gains)}.", ""]


def _groups(group: Sequence[Result]) -> list[str]:
    lines = []
    for name, first in group[0].get("groups", {}).items():
        together = mean_and_deviation([100 * result["groups"][name]["together"] for result in group])
        lines += [
            f"Pairs of classes of one {name} that share an expert: {together} per cent; "
            f"by chance {100 * first['by_chance']:.2f}.",
            "",
        ]
    return lines


def recipe_in_words(recipe: Mapping[str, Any]) -> str:
    drops = ", ".join(str(round(drop * recipe["epochs"])) for drop in recipe["drops"])
    words = f"{recipe['epochs']} epochs at {recipe['rate']:g}"
    words += f", a tenth after {drops}" if drops else ""
    words += f", batch {recipe['batch']}, weight decay {recipe['weight_decay']:g}"
    words += ", on batch norm too" if recipe.get("decay_norms") else ""
    return ", ".join([words, *beyond_the_paper(recipe)])
