"""The page says what the files say."""

import copy
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import small_dataset, small_run
from nofe import runs
from nofe.architectures import ARCHITECTURES
from nofe.architectures.caffe import BatchNorm2d
from nofe.config import to_json
from nofe.errors import UserError
from nofe.experiments.claims import epochs_of_row, experts_and_base, judged, peak_and, sizes
from nofe.experiments.claims_page import anchor, comparisons_table, differences
from nofe.experiments.comparison import Comparison, Judged
from nofe.experiments.index import Index
from nofe.experiments.keys import keys_of, keys_of_experiment
from nofe.experiments.markdown import results_page
from nofe.experiments.page import table_in_words
from nofe.experiments.paper_tables import PAPER_TABLE_3, UNEVEN_IS_EASIER, label_as_long
from nofe.experiments.pictures import pictures
from nofe.experiments.readme import BEGIN, END, NAMES, comparison_table, with_table
from nofe.experiments.results import file_result, read_results
from nofe.experiments.table import Row
from nofe.experiments.tables import TABLES, base_of_same_recipe, row_of
from nofe.pipeline import train
from nofe.recipes import base_by, default_run
from nofe.report.digest import digest_in
from nofe.report.speed import speed_page
from nofe.runs import Run
from nofe.training.recipe import Recipe
from nofe.training.runtime import make_runtime

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "results"


def test_the_committed_page_agrees_with_the_committed_files() -> None:
    found = read_results(ROOT / "results")
    assert (ROOT / "docs" / "results.md").read_text() == results_page(found, BENCHMARKS)


def test_the_committed_pictures_show_what_the_committed_files_say() -> None:
    """By the data in them: bytes depend on the version of matplotlib, too."""
    committed = {path.name: path.read_bytes() for path in (ROOT / "docs" / "figures").glob("*.png")}
    drawn = pictures(Index(read_results(ROOT / "results")))
    assert committed.keys() == drawn.keys()
    for name, png in drawn.items():
        same = digest_in(committed[name]) == digest_in(png) is not None
        assert committed[name] == png or same, f"{name}: made of other results; run nofe results"


def test_the_figures_of_the_readme_are_those_of_the_files() -> None:
    found = read_results(ROOT / "results")
    readme = (ROOT / "README.md").read_text()
    table = comparison_table(Index(found))
    assert f"{BEGIN}\n\n{table}\n\n{END}" in readme, "run nofe results"
    assert with_table(readme, table) == readme
    assert with_table(readme, "other") != readme
    [demo] = [result for result in found if result["data"]["name"] == "glyphs"]
    shown = re.findall(r"(base|generalist|network of experts)\b.* (\d+\.\d+%) +([\d,]+) ", readme)
    assert [(share, parameters) for _, share, parameters in shown] == [
        (f"{each['accuracy']:.2%}", f"{each['parameters']:,}") for each in demo["networks"].values()
    ]


def test_what_the_readme_says_does_not_hold_is_what_the_files_say() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    outcomes = {
        one.words: one.outcome for each in judged(Index(read_results(ROOT / "results"))) for one in each.comparisons
    }
    for said, words, outcome in (
        (
            "a plain network with the experts' parameters and depth is better than the experts",
            "alexnet-c100, experts and a base of the same parameters and depth",
            "not held",
        ),
        (
            "learned specialties are not measurably better than random ones",
            "fully-balanced and random ones",
            "too close to call",
        ),
        ("and all of it for VGG11", "vgg11-c100, experts and a base of 200 epochs", "too close to call"),
        ("what is left for NIN is within the noise", "nin-c100, experts and a base of 333 epochs", "too close to call"),
        ("is left for ResNet56 is not measured", "resnet56-c100, experts and a base of 77 epochs", "not measured"),
    ):
        [found] = {each for each in outcomes if each.startswith(words)}
        assert (said in readme, outcomes[found]) == (True, outcome)


def test_the_readme_compares_with_the_base_by_the_same_recipe(quick: dict[str, Any]) -> None:
    table = comparison_table(Index([with_figures(quick, seed, base=0.40, experts=0.45) for seed in range(3)]))
    line = "| AlexNet-Quick-C100 | 40.00 ± 0.00 (n=3) | not measured | 45.00 ± 0.00 (n=3) | +5.00 | 37.94 | 45.58 |"
    assert line in table
    assert "| NIN-C100 | not measured | not measured | not measured |  | 65.41 | 67.96 |" in table
    assert base_of_same_recipe("nin-c100").network == "base"


def test_tables_and_figures_have_the_paper_s_numbers() -> None:
    """As the map of the paper has them: its third figure is of neighbours, and generalists are in its second."""
    of_paper = (ROOT / "docs" / "paper-map.md").read_text()
    titles = [f"{name.replace('table-', 'Table ')}: {table.title}" for name, table in TABLES.items()]
    found = {number for title in titles for number in re.findall(r"(?:Table|Fig\.) \d", title)}
    assert found == {"Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Fig. 2"}
    for number in found:
        assert number in of_paper


def test_a_picture_of_other_figures_has_another_digest(quick: dict[str, Any]) -> None:
    def digests(accuracy: float) -> dict[str, str | None]:
        row = next(row for row in TABLES["table-1"].rows if row.label == "fully-balanced, K=10")
        config = json.loads(json.dumps(to_json(row.experiment.config)))
        made = with_figures(quick | {"config": config}, 0, experts=accuracy)
        made["test_accuracy_by_epoch"]["generalist"] = [accuracy / 2, accuracy]
        return {name: digest_in(png) for name, png in pictures(Index([made])).items()}

    first, again, other = digests(0.5), digests(0.5), digests(0.6)
    assert first == again
    assert first.keys() == {"table-1.png", "generalists.png"}
    assert all(first[name] != other[name] for name in first)


def test_the_committed_page_of_speed_agrees_with_the_committed_benchmarks() -> None:
    """Every table is there, and every file is named."""
    page = (ROOT / "docs" / "speed.md").read_text()
    assert page == speed_page(BENCHMARKS)
    for file in BENCHMARKS.glob("*/*.json"):
        assert f"({Path('..') / file.relative_to(ROOT)})" in page


def test_every_committed_result_names_device_versions_date_seed_and_commit() -> None:
    for result in read_results(ROOT / "results"):
        environment = result["environment"]
        assert all(environment[name] for name in ("device", "versions", "date", "commit", "precision"))
        assert result["config"]["seed"] == environment["seed"]
        for stage, recipe in (("experts", "experts"), ("generalist", "generalist"), ("base", "experts")):
            if stage in result["networks"]:
                assert len(result["test_accuracy_by_epoch"][stage]) == result["config"][recipe]["epochs"]


def test_no_committed_result_is_of_gradients_that_were_wrong() -> None:
    """Averages over the border, which only the AlexNets have: docs/decisions/0019."""
    mended = "2026-11-15T22:28:15"
    for result in read_results(ROOT / "results"):
        if result["config"]["architecture"].startswith("alexnet"):
            assert result["environment"]["date"] > mended, result["file"]


def test_results_in_bfloat16_on_a_share_that_nobody_knows_are_said_to_be() -> None:
    """Of those that ran beside others by MPS; ResNet56-C100's without a share took turns, or say so themselves."""
    unknown = {
        result["experiment"]
        for result in read_results(ROOT / "results")
        if result["environment"]["precision"] == "bf16"
        and "share_of_gpu" not in result["environment"]
        and not result["config"]["architecture"].startswith("resnet56")
    }
    assert unknown == {each.name for each in TABLES["precision"].experiments() if each.config.precision == "bf16"}
    assert "do not name the share of the GPU" in TABLES["precision"].note


def test_every_file_of_an_experiment_is_of_the_configuration_that_it_names() -> None:
    """A recipe that changes leaves results behind that are no longer the experiment's."""
    experiments = {each.name: each for table in TABLES.values() for each in table.experiments()}
    for result in read_results(ROOT / "results"):
        named = experiments.get(result.get("experiment"))
        if named is not None:
            wanted = keys_of_experiment(named, result["config"]["seed"])
            assert keys_of(result) == wanted, result["experiment"]


@pytest.fixture
def quick() -> dict[str, Any]:
    """A committed result of AlexNet-Quick-C100, to make others of: experts and their base in one run."""

    def committed(experiment: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((ROOT / "results/nvidia-h200" / f"{experiment}-seed0.json").read_text())
        return result

    experts, base = committed("alexnet-quick-c100-fully-balanced-k10"), committed("alexnet-quick-c100-base")
    experts["config"]["base"] = base["config"]["base"]
    for field in ("networks", "test_accuracy_by_epoch"):
        experts[field]["base"] = base[field]["base"]
    return experts


def with_figures(result: dict[str, Any], seed: int, **accuracies: float) -> dict[str, Any]:
    made = copy.deepcopy(result)
    made["config"]["seed"] = seed
    for network, accuracy in accuracies.items():
        made["networks"][network]["accuracy"] = accuracy
    return made


def test_mean_deviation_and_difference(quick: dict[str, Any]) -> None:
    figures = [(0.37, 0.45), (0.39, 0.47), (0.38, 0.46)]
    page = results_page(
        [with_figures(quick, seed, base=b, experts=e) for seed, (b, e) in enumerate(figures)], BENCHMARKS
    )
    name = "alexnet-quick-c100"
    assert f"| {name}: base, its own recipe | 38.00 ± 1.00 (n=3) | 37.00, 39.00, 38.00 | 37.94 | +0.06 |" in page
    assert f"| {name}: experts | 46.00 ± 1.00 (n=3) | 45.00, 47.00, 46.00 | 45.58 | +0.42 |" in page
    assert "| nin-c100: experts | not measured |" in page


def of_row(result: dict[str, Any], table: str, label: str, sizes: list[int]) -> dict[str, Any]:
    """The result as if it were of this row, with specialties of these sizes."""
    row = next(row for row in TABLES[table].rows if row.label == label)
    made = copy.deepcopy(result) | {"config": json.loads(json.dumps(to_json(row.experiment.config)))}
    made["specialties"]["specialties"] = [{"index": n, "size": size, "class_names": []} for n, size in enumerate(sizes)]
    return made


def test_a_rule_that_ended_with_one_expert_is_said_to_have(quick: dict[str, Any]) -> None:
    """Else the page would compare ten experts with one, and call it balance."""
    learned = of_row(quick, "table-2", "learned, fully-balanced", [10] * 10)
    alone = of_row(quick, "table-2", "learned, argmax", [100])
    page = results_page([with_figures(each, seed) for each in (learned, alone) for seed in range(3)], BENCHMARKS)
    [line] = [line for line in page.splitlines() if line.startswith("| learned, argmax |")]
    assert line.endswith("| 1 of 100 classes |")
    [balance] = [line for line in page.splitlines() if line.startswith("| fully-balanced and argmax")]
    assert "| not judged: one specialty of 10 had taken all classes" in balance
    uneven = results_page([of_row(quick, "table-2", "learned, argmax", [60, 30, 2] + [1] * 8)], BENCHMARKS)
    assert "| 11 of 1 to 60 classes |" in uneven
    assert "had taken all classes" not in uneven


def test_what_elasso_s_specialties_came_to_is_said(quick: dict[str, Any]) -> None:
    """Where they are equal, a comparison with fully-balanced is none of sizes; where they stayed, none of learning."""
    made = [
        of_row(quick, "table-1", f"elasso, K={count}", sizes) | {"classes_moved_by_update": moved}
        for count, sizes, moved in (
            (5, [19, 20, 20, 20, 21], [30, 20]),
            (10, [10] * 10, [6, 5]),
            (20, [4] * 10 + [6] * 10, [0, 0]),
            (50, [2] * 50, [5, 5, 0]),
        )
    ]
    claims = {each.claim: each.comparisons for each in judged(Index(made))}
    remarks = [each.remark for each in claims["fully-balanced is slightly better than elasso"]]
    stayed = "elasso's specialties stayed random"
    assert remarks[1:] == ["", "elasso's specialties came out equal, too", stayed, stayed]
    of_every_k = claims["Experts beat the base for every K above two"]
    assert [each.words for each in of_every_k if each.remark == stayed] == [
        f"elasso, K={count}, and the base" for count in (20, 50)
    ]
    again = with_figures(made[3], 1) | {"classes_moved_by_update": [11]}
    page = results_page(made, BENCHMARKS)
    assert "| not measured: elasso's specialties stayed random |" in page
    said = "elasso, K=50: its specialties are the random ones that it began with: in all updates together "
    assert f"{said}10 classes moved" in page
    assert said not in results_page([*made, again], BENCHMARKS), "in one of two runs they did not stay"


def test_where_the_paper_s_own_figures_are_the_other_way_round_it_is_said() -> None:
    remarks = {each.words: each.remark for claim in judged(Index([])) for each in claim.comparisons if each.remark}
    of_paper = {words: remark for words, remark in remarks.items() if "paper's own table" in remark}
    assert of_paper == {
        "elasso, K=5, and the base": "in the paper's own table it is 53.60 and 54.00",
        "fully-balanced and elasso, K=2": "in the paper's own table it is 53.30 and 53.93",
    }


def test_what_a_file_says_of_itself_is_said_in_its_table(quick: dict[str, Any]) -> None:
    made = of_row(quick, "specialty-sizes", "lambda 500", [10] * 10) | {"note": "Made on a Sunday."}
    section = results_page([made], BENCHMARKS).partition(f"## {TABLES['specialty-sizes'].title}")[2].partition("## ")[0]
    assert "lambda 500: Made on a Sunday." in section
    assert "random ones" not in section
    still = results_page([made | {"classes_moved_by_update": [0, 0]}], BENCHMARKS)
    assert "lambda 500: its specialties are the random ones that it began with: in all updates together 0 " in still


def test_curves_that_were_tested_after_an_update_are_marked(quick: dict[str, Any]) -> None:
    made = of_row(quick, "generalists", "learned, exact", [10] * 10) | {"classes_moved_by_update": [3, 0]}
    del made["generalist_tested"]
    assert "In the figure, learned, exact: every epoch but the last" in results_page([made], BENCHMARKS)
    assert "In the figure" not in results_page([made | {"generalist_tested": "before the update"}], BENCHMARKS)


def test_a_run_of_another_recipe_is_shown_apart(quick: dict[str, Any]) -> None:
    other = with_figures(quick, 0, experts=0.99)
    other["config"]["experts"]["rate"] = 0.5
    page = results_page([quick, other], BENCHMARKS)
    tables, others = page.split("## Other runs")
    assert "99.00" not in tables
    assert "| experts | 99.00 (n=1) | 99.00 |" in others
    assert "| generalist, on its specialties | " in others
    assert "top-1" not in others
    again = copy.deepcopy(other) | {"file": "again.json"}
    again["networks"]["experts"]["accuracy"] = 0.98
    again["environment"]["date"] = "2100-01-01T00:00:00+00:00"
    others = results_page([quick, again, other], BENCHMARKS).split("## Other runs")[1]
    assert "| experts | 98.50 ± 0.71 (n=2) | 99.00, 98.00 |" in others, "every run counts, the older first"


def test_a_base_alone_of_another_recipe_is_called_one(quick: dict[str, Any]) -> None:
    other = with_figures(quick, 0, base=0.5)
    other["config"] |= {"until": "base"}
    other["config"]["experts"]["rate"] = 0.5
    other["networks"] = {"base": other["networks"]["base"]}
    others = results_page([quick, other], BENCHMARKS).split("## Other runs")[1]
    assert ": alexnet-quick-c100, base\n" in others
    assert "Base: " in others
    assert "Generalist" not in others
    assert "Experts" not in others


def test_a_claim_is_held_by_figures_alone(quick: dict[str, Any]) -> None:
    def verdict(base: float, experts: float, seeds: int = 3) -> str:
        results = [
            with_figures(quick, seed, base=base + 0.001 * seed, experts=experts - 0.001 * seed) for seed in range(seeds)
        ]
        [first, *_] = judged(Index(results))
        assert first.claim == "Experts beat the base"
        return first.verdict

    assert verdict(0.3, 0.4) == "held, as far as measured"
    assert verdict(0.4, 0.3) == "not held"
    assert verdict(0.4, 0.403) == "too close to call, as far as measured"
    assert verdict(0.3, 0.4, seeds=2) == "too few runs"
    assert {each.verdict for each in judged(Index([]))} == {"not measured"}


def test_a_difference_is_one_when_it_is_wider_than_the_noise() -> None:
    def of(above: tuple[float, ...], below: tuple[float, ...]) -> str:
        return Comparison("", above, below).outcome

    assert of((56.0, 56.5, 57.0), (55.0, 55.2, 55.4)) == "held"
    assert of((55.0, 55.2, 55.4), (56.0, 56.5, 57.0)) == "not held"
    assert of((56.0, 58.0, 54.0), (55.0, 57.0, 53.0)) == "too close to call", "the means differ by less than they vary"
    assert of((57.0, 57.1), (50.0, 50.1, 50.2)) == "too few runs"
    assert of((), (1.0, 2.0, 3.0)) == "not measured"
    assert of((52.0, 52.0, 52.0), (51.0, 51.0, 51.0)) == "held"
    assert of((51.0, 51.0, 51.0), (51.0, 51.0, 51.0)) == "too close to call", "as good is not better"


def test_verdicts() -> None:
    low, middle, high = (51.0, 51.1, 51.2), (51.1, 51.15, 51.2), (53.0, 53.1, 53.2)

    def of(*pairs: tuple[tuple[float, ...], tuple[float, ...]]) -> str:
        return Judged("", tuple(Comparison("", above, below) for above, below in pairs)).verdict

    assert of((high, low), (high, middle)) == "held"
    assert of((high, low), (low, high)) == "not held"
    assert of((high, low), (middle, low)) == "held in part"
    assert of((low, high)) == "not held"
    assert of((low, high), (middle, low)) == "not held"
    assert of((middle, low)) == "too close to call"
    assert of((high, low), ((), low)) == "held, as far as measured"
    assert of((high, low), (high[:2], low)) == "held, as far as measured"
    assert of((high[:2], low), ((), low)) == "too few runs"


def test_experts_are_compared_with_the_base_of_every_recipe_that_both_have() -> None:
    """By Table 3 itself: a pair of rows that is added there without a comparison is found."""

    def by_its_recipe(row: Row) -> tuple[str, Recipe]:
        config = row.experiment.config
        return config.architecture, config.base.paper if row.network == "base-paper" else base_by(config.experts)

    rows = [row for row in TABLES["table-3"].rows if row.experiment.config.specialties.rule == "fully-balanced"]
    bases = [row for row in rows if row.network.startswith("base")]
    pairs = {
        (experts.label, base.label)
        for experts in rows
        for base in bases
        if experts.network == "experts" and by_its_recipe(experts) == by_its_recipe(base)
    }
    labels = [row.label for row in rows]
    compared = experts_and_base(lambda _, label: [labels.index(label)])
    assert pairs <= {(labels[int(each.above[0])], labels[int(each.below[0])]) for each in compared}
    assert len(pairs) == 10


def test_where_the_trunk_has_seen_images_that_the_base_has_not_it_is_said() -> None:
    remarks = {each.words.partition(",")[0] for each in experts_and_base(lambda *_: []) if "mirrored" in each.remark}
    assert remarks == {"alexnet-quick-c100"}, "paper-map.md, row 2"
    said = "In AlexNet-Quick that one alone sees mirrored images"
    assert said in " ".join((ROOT / "README.md").read_text().split()), "where its gain is the largest of all"
    of_quick = [each for each in experts_and_base(lambda *_: []) if each.words.startswith("alexnet-quick")]
    assert len(of_quick) == 2
    assert all("mirrored images are the generalist's alone" in each.remark for each in of_quick)


def test_a_base_by_another_recipe_says_nothing_about_its_size() -> None:
    """VGG11-C100 with 20 more convolutions does not learn at the rate of the experts."""
    why = {each.words: each.why for each in sizes(lambda *_: [50.0, 51.0, 52.0]) if each.why}
    assert list(why) == ["vgg11-c100, experts and a base of the same parameters"]
    assert "begins at 0.001, the experts at 0.01" in next(iter(why.values()))


def test_hd_cnn_and_neighbours_are_claims_of_the_paper_too(quick: dict[str, Any]) -> None:
    row = TABLES["retrieval"].rows[0]
    config = json.loads(json.dumps(to_json(row.experiment.config)))
    made = []
    for seed in range(3):
        by_depth = {"1": 0.9, "3": 0.4 + 0.01 * seed, "10": 0.1}
        precision = {"precision": {"experts": by_depth, "base": by_depth | {"3": 0.3 + 0.01 * seed}}}
        made.append(
            quick | {"config": config | {"seed": seed}, "experiment": row.experiment.name, "retrieval": precision}
        )
    claims = {each.claim: each for each in judged(Index(made))}
    neighbours = claims["Neighbours by the experts' features are better than by the base's"]
    assert neighbours.verdict == "held, as far as measured"
    assert (neighbours.comparisons[0].above, neighbours.comparisons[0].below) == (
        pytest.approx([40, 41, 42]),
        pytest.approx([30, 31, 32]),
    )
    assert claims["Experts beat HD-CNN, which has twice their parameters"].verdict == "not measured"


def test_what_the_paper_says_of_generalists_is_judged_by_generalists(quick: dict[str, Any]) -> None:
    """Its Fig. 2, which was measured and stood among no claims."""
    by_label = {"learned, fully-balanced": 0.5, "random": 0.4, "10 pairs of superclasses": 0.6}
    made = [
        with_figures(of_row(quick, "generalists", label, [10] * 10), seed, generalist=accuracy + 0.001 * seed)
        for label, accuracy in by_label.items()
        for seed in range(3)
    ]
    claims = {each.claim: each for each in judged(Index(made))}
    found = claims["The generalist recognises learned specialties best (the paper: on ImageNet)"]
    assert [(each.outcome, round(each.above[0]), round(each.below[0])) for each in found.comparisons] == [
        ("held", 50, 40),
        ("not held", 50, 60),
    ]
    assert found.verdict == "not held"
    exact = with_figures(of_row(quick, "generalists", "learned, exact", [10] * 10), 0, generalist=0.55)
    [_, other] = judged(Index([*made, exact]))[5].comparisons
    assert (found.comparisons[1].remark, other.remark) == ("", "of those learned by the rule exact: 55.00")


def test_whether_a_seed_that_counts_twice_makes_a_difference_is_said(quick: dict[str, Any]) -> None:
    def page(seeds: list[int]) -> str:
        results = []
        for place, seed in enumerate(seeds):
            one = with_figures(quick, seed, base=0.30 + 0.001 * place, experts=0.40 + 0.001 * place)
            for network in one["networks"]:
                one["networks"][network]["seconds"] += place
            results.append(one | {"file": f"{place}.json"})
        return results_page(results, BENCHMARKS)

    said = "With one figure for each seed, the mean of its runs, "
    assert f"{said}every outcome is the same." in page([0, 1, 2])
    words = "alexnet-quick-c100, experts and base by the same recipe (too few runs)"
    assert f"{said}other outcomes are: {words}." in page([0, 0, 1, 1]), "four runs, two seeds"


def test_a_larger_base_that_is_below_the_plain_one_is_said_to_be() -> None:
    """Experts above it would else seem to be better than their parameters."""

    def remarks(larger: float) -> set[str]:
        def figure(table: str, label: str) -> list[float]:
            middle = larger if "same parameters" in label else 55.0
            return [middle + noise for noise in (-0.1, 0.0, 0.1)]

        return {each.remark for each in sizes(figure) if "of the same" in each.words}

    [below] = remarks(48.0)
    assert below.startswith("this base is below the plain one, too (55.00)")
    assert remarks(56.0) == remarks(55.0) == {""}


def test_the_evidence_of_a_claim_is_laid_out_by_comparison() -> None:
    held = Comparison("a and b", (56.0, 56.5, 57.0), (55.0, 55.2, 55.4))
    idle = Comparison("c and d", (56.0, 56.5, 57.0), (1.0, 1.0, 1.0))
    open_ = Comparison("e and f", (56.0,), ())
    known = replace(held, remark="both are one network")
    of_held, of_idle, of_open, of_known = comparisons_table([held, idle, open_, known]).splitlines()[2:]
    assert of_known == of_held.replace("| held |", "| held: both are one network |")
    assert of_held == "| a and b | 56.50 | 55.20 | +1.30 | 3, 3 | 0.032 | held |"
    assert of_idle.startswith("| c and d | 56.50 | 1.00 | +55.50 | 3, 3 |  | not judged: runs learned nothing, 3 of 3")
    assert of_open == "| e and f | 56.00 |  |  | 1, 0 |  | not measured |"


def sections_of(page: str) -> dict[str, str]:
    return {part.splitlines()[0]: part for part in page.split("\n## ")}


def test_what_is_not_measured_is_listed_with_the_reason_and_the_cost(quick: dict[str, Any]) -> None:
    def of(row: Row, seeds: int = 3) -> list[dict[str, Any]]:
        config = row.experiment.seeded
        return [quick | {"config": json.loads(json.dumps(to_json(config(n)))), "file": f"{n}"} for n in range(seeds)]

    def said(page: str, table: str) -> list[str]:
        lines = sections_of(page)["What is not measured"].splitlines()
        return [line for line in lines if line.startswith(f"| [{table}](#")]

    title, (base, experts) = TABLES["mirroring"].title, TABLES["mirroring"].rows
    nothing, half, few, every = (
        results_page(results, BENCHMARKS)
        for results in ([quick], of(base), [*of(base), *of(experts, 2)], [*of(base), *of(experts)])
    )
    [line] = said(nothing, "mirroring")
    assert re.fullmatch(r"\| \[mirroring\]\(#\S+\) \| all \| they wait for GPU time \| [\d.]+ \| [\d.]+ \|", line)
    for page in (half, few):
        [line] = said(page, "mirroring")
        assert "| experts, no mirroring | they wait" in line
    assert said(every, "mirroring") == []
    [line] = said(every, "imagenet")
    assert line.endswith("| all | its images are not at hand |  |  |")
    assert "2 of 2 rows; they wait for GPU time ([what" in sections_of(nothing)[title]
    assert "1 of 2 rows" in sections_of(half)[title]
    assert "Not measured" not in sections_of(every)[title]


def test_whether_the_paper_s_figures_are_reached_is_said_first(quick: dict[str, Any]) -> None:
    def short(experts: float, **more: Any) -> list[str]:
        made = [with_figures(quick, seed, experts=experts) | more for seed in range(3)]
        return sections_of(results_page(made, BENCHMARKS))["In short"].splitlines()

    assert "- The paper's figure for experts is reached, in the mean, by AlexNet-Quick-C100." in short(0.46)
    assert "- AlexNet-Quick-C100's experts do not: 44.00, where the paper has 45.58." in short(0.44)
    assert "- NIN-C100's experts are not measured." in short(0.44)
    assert "- AlexNet-Quick-C100's base: Made on a Sunday." in short(0.46, note="Made on a Sunday.")
    longer = of_row(quick, "table-3", "vgg11-c100: experts, the release's steps", [10] * 10)
    plain = of_row(quick, "table-3", "vgg11-c100: experts", [10] * 10)
    made = [with_figures(plain, 0, experts=0.6), with_figures(longer, 0, experts=0.7)]
    said = "VGG11-C100's experts do not: 60.00, where the paper has 69.27 (the release's steps: 70.00)."
    assert said in results_page(made, BENCHMARKS)


def test_the_checklist_has_the_range_of_what_was_found_for_a_claim() -> None:
    held = Comparison("", (56.0, 56.5, 57.0), (55.0, 55.2, 55.4))
    other = Comparison("", (55.0, 55.2, 55.4), (56.0, 56.5, 57.0))
    few, idle = Comparison("", (99.0,), (1.0,)), Comparison("", (56.0, 56.5, 57.0), (1.0, 1.0, 1.0))
    assert differences(Judged("", (held,))) == "+1.30"
    assert differences(Judged("", (held, other, few, idle))) == "-1.30 to +1.30", "of those that are judged"
    assert differences(Judged("", (few, idle))) == ""


def test_a_run_is_filed_with_its_figures_and_without_paths(tmp_path: Path) -> None:
    config = small_run("experts.epochs=1", "generalist.epochs=1", f"data.root={tmp_path}")
    summary = train(config, tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    path = file_result(Run(tmp_path / "run"), tmp_path / "results")
    assert path.name == "small-alexnet-quick-c100-fully-balanced-k2-seed0.json"
    assert str(tmp_path) not in path.read_text()
    [result] = read_results(tmp_path / "results")
    assert result["networks"] == summary["networks"]
    assert result["test_accuracy_by_epoch"]["experts"][-1] == summary["networks"]["experts"]["accuracy"]
    assert file_result(Run(tmp_path / "run"), tmp_path / "results") == path, "filed again it is the same result"
    again = Run(shutil.copytree(tmp_path / "run", tmp_path / "again"))
    again.write_json(runs.ENVIRONMENT, again.read_json(runs.ENVIRONMENT) | {"date": "2100-01-01T00:00:00+00:00"})
    for name in (None, path.stem.removesuffix("-seed0")):
        for _ in range(2):
            beside = file_result(again, tmp_path / "results", name)
            assert beside.name == f"{path.stem}-run2.json", "a second training of a seed does not replace the first"
    assert len(read_results(tmp_path / "results")) == 2
    beside.unlink()
    result["config"]["experts"]["rate"] = 0.5
    path.write_text(json.dumps(result))
    beside = file_result(Run(tmp_path / "run"), tmp_path / "results")
    assert beside.name.startswith("small-alexnet-quick-c100-fully-balanced-k2-"), "the name is another recipe's already"
    assert json.loads(path.read_text())["config"]["experts"]["rate"] == 0.5
    assert len(read_results(tmp_path / "results")) == 2


def test_no_results(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no results"):
        read_results(tmp_path)


def test_what_test_accuracies_had_a_say_in_is_said(quick: dict[str, Any]) -> None:
    """Networks that nothing normalises were to train in TF32; two do not, since AlexNet-C100 was as good without."""
    [line] = [line for line in results_page([quick], BENCHMARKS).splitlines() if "chosen by test accuracy" in line]
    anchors = set(re.findall(r"\(#([\w-]+)\)", line))
    assert anchors == {anchor(TABLES["precision"].title)}
    for name in PAPER_TABLE_3:
        is_normalised = any(isinstance(part, BatchNorm2d) for part in ARCHITECTURES[name].classifier(2).modules())
        in_bfloat16 = default_run(name).precision == "auto" and not is_normalised
        assert (f"{NAMES[name]} train in bfloat16" in line or f"{NAMES[name]} and" in line) == in_bfloat16


def test_how_far_two_tests_of_the_same_weights_were_apart_is_said(quick: dict[str, Any]) -> None:
    made = [with_figures(quick, seed, experts=quick["networks"]["experts"]["accuracy"]) for seed in range(2)]
    made[1]["environment"]["precision"] = "bf16"
    made[1]["test_accuracy_by_epoch"]["experts"][-1] += 0.0009
    said = "Two tests of the same weights were at most 0.09 points in bf16 and 0.00 points in tf32 apart."
    assert said in results_page(made, BENCHMARKS)


def test_recipes_name_what_is_of_neither_paper_nor_release(quick: dict[str, Any]) -> None:
    section = sections_of(results_page([quick], BENCHMARKS))["Recipes"]
    for name in PAPER_TABLE_3:
        architecture = ARCHITECTURES[name]
        assert (f"{NAMES[name]}'s generalist has" in section) == (architecture.generalist_head is not None)


def test_a_table_says_what_its_figures_are(quick: dict[str, Any]) -> None:
    """Accuracy over ten specialties is not top-1 over a hundred classes, and precision of retrieval is neither."""
    sections = {section.splitlines()[0]: section for section in results_page([quick], BENCHMARKS).split("\n## ")}
    for name, measure in {
        "table-1": "top-1",
        "generalists": "accuracy on its 10 specialties",
        "specialty-sizes": "accuracy on its specialties",
    }.items():
        assert f"|  | {measure} | each run |" in sections[TABLES[name].title]
        assert f"{measure} %, mean and deviation" in table_in_words(TABLES[name], [quick])
    retrieval = sections[TABLES["retrieval"].title]
    assert "top-1" not in retrieval
    assert "| alexnet-c100 | base | not measured | not measured | not measured |" in retrieval
    assert "at 10" in table_in_words(TABLES["retrieval"], [quick])


def test_accuracies_over_specialties_are_said_to_be_easier_where_sizes_differ() -> None:
    tables = [table for table in TABLES.values() if table.measure.startswith("accuracy on its")]
    assert {"generalists", "imagenet-generalists"} < {table.name for table in tables}
    assert all(UNEVEN_IS_EASIER in table.note for table in tables)
    assert "932 of the 1,000 classes" in TABLES["imagenet-generalists"].note, (
        "tests/test_thousand_classes.py counts them"
    )


def on_imagenet(quick: dict[str, Any], row: Row, **more: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(to_json(row.experiment.config)))
    networks = {row.network: {"accuracy": 0.5, "parameters": 1, "seconds": 1.0}}
    return quick | {"experiment": row.experiment.name, "config": config, "networks": networks, "file": "f"} | more


def test_imagenet_is_judged_by_ten_crops_as_the_paper_does(quick: dict[str, Any]) -> None:
    row = next(row for row in TABLES["imagenet"].rows if row.label == "fully-balanced, K=10")
    crops = {"experts": {"top_1": 0.6, "top_5": 0.8}}
    page = results_page([on_imagenet(quick, row, ten_crops=crops)], BENCHMARKS)
    assert "|  | top-1 by ten crops | each run | paper |" in page
    assert "| fully-balanced, K=10 | 60.00 (n=1) | 60.00 | 61.29 | -1.29 | 80.00 | 1 |" in page
    assert Index([on_imagenet(quick, row)]).of(row) == [], "one crop is another measure"


def test_generalists_are_drawn_for_imagenet_too(quick: dict[str, Any]) -> None:
    row = TABLES["imagenet-generalists"].rows[2]
    made = on_imagenet(quick, row, test_accuracy_by_epoch={"generalist": [0.1, 0.2]})
    assert pictures(Index([made])).keys() == {"imagenet-generalists.png"}
    assert "(figures/imagenet-generalists.png)" in results_page([made], BENCHMARKS)


# Two files for one thing


def dated(result: dict[str, Any], date: str, file: str, **more: Any) -> dict[str, Any]:
    made = copy.deepcopy(result) | {"file": file} | more
    made["environment"]["date"] = date
    return made


def test_a_seed_that_was_trained_twice_counts_twice_and_a_copy_once(quick: dict[str, Any]) -> None:
    older = dated(with_figures(quick, 0, base=0.40, experts=0.41), "2026-11-15T10:00:00+00:00", "gpu/a.json")
    newer = dated(with_figures(quick, 0, base=0.4001, experts=0.47), "2026-11-16T10:00:00+00:00", "gpu/b.json")
    newer["networks"]["experts"]["seconds"] += 1
    base, experts = (row_of("table-3", f"alexnet-quick-c100: {label}") for label in ("base, its own recipe", "experts"))
    for order in ([older, newer], [newer, older]):
        index = Index(order)
        assert [round(each.accuracy, 2) for each in index.of(experts)] == [41.0, 47.0], "the older run first"
        assert len(index.of(base)) == 1, "the same epochs: the second run took it over, and tested it again"
        page = results_page(order, BENCHMARKS)
        assert "| alexnet-quick-c100: experts | 44.00 ± 4.24 (n=2) | 41.00, 47.00 |" in page
        assert "Other runs" not in page


def test_any_seed_counts(quick: dict[str, Any]) -> None:
    page = results_page([with_figures(quick, 1234, experts=0.41)], BENCHMARKS)
    assert "| alexnet-quick-c100: experts | 41.00 (n=1) | 41.00 |" in page
    assert "Other runs" not in page


def test_by_ten_crops_a_run_counts_with_its_own_figures(quick: dict[str, Any]) -> None:
    row = next(row for row in TABLES["imagenet"].rows if row.label == "fully-balanced, K=10")
    made = [
        on_imagenet(quick, row, ten_crops={"experts": {"top_1": top_1, "top_5": 0.8}}, file=f"{place}.json")
        for place, top_1 in enumerate((0.6, 0.62))
    ]
    made[1]["networks"] = {"experts": made[1]["networks"]["experts"] | {"seconds": 2.0}}
    by_one_crop = on_imagenet(quick, row, file="2.json")
    assert [round(each.accuracy, 2) for each in Index([*made, by_one_crop]).of(row)] == [60.0, 62.0]


def test_what_was_measured_on_a_run_is_found_whatever_other_files_there_are(quick: dict[str, Any]) -> None:
    row = TABLES["retrieval"].rows[0]
    precision = {"precision": {"experts": {"1": 0.5, "3": 0.4, "10": 0.3}, "base": {"1": 0.2, "3": 0.1, "10": 0.1}}}
    picture = {"picture": {"png": "", "caption": "", "alternative": ""}}
    config = json.loads(json.dumps(to_json(row.experiment.config)))
    plain = quick | {"config": config, "experiment": "another"}
    full = plain | {"experiment": row.experiment.name, "retrieval": precision | picture}
    newer = dated(plain, "2027-01-01", "gpu/a.json")
    older = dated(full, "2026-01-01", "gpu/b.json")
    assert Index([newer, older]).measures(row.experiment, "retrieval") == {0: older["retrieval"]}
    assert "| alexnet-c100 | experts | 50.00 (n=1) | 40.00 (n=1) | 30.00 (n=1) |" in results_page(
        [newer, older], BENCHMARKS
    )
    older["config"]["experts"]["rate"] = 0.5
    assert Index([newer, older]).measures(row.experiment, "retrieval") == {}, "of an earlier recipe"


@pytest.mark.parametrize(
    ("means", "outcomes"),
    [
        ((53, 55, 58, 56, 54), ["held", "held"]),
        ((53, 55, 56, 57, 60), ["held", "not held"]),
        ((60, 55, 56, 57, 54), ["not held", "held"]),
        ((53, 55, 56, 60, 58), ["held", "not held"]),  # at another K: the one that is tested is not chosen by figures
    ],
)
def test_an_inverted_u_has_the_papers_k_above_both_ends(means: tuple[float, ...], outcomes: list[str]) -> None:
    by_label = {f"fully-balanced, K={count}": mean for count, mean in zip((2, 5, 10, 20, 50), means, strict=True)}

    def figure(table: str, label: str) -> list[float]:
        return [by_label[label] + noise for noise in (-0.1, 0.0, 0.1)] if label in by_label else []

    fully_balanced, elasso = zip(*(peak_and(end, Index([]), figure) for end in (2, 50)), strict=True)
    assert [comparison.outcome for comparison in fully_balanced] == outcomes
    assert [comparison.outcome for comparison in elasso] == ["not measured", "not measured"]


def test_what_learned_nothing_is_no_evidence() -> None:
    chance = Comparison("", [56.0, 56.1, 56.2], [1.0, 1.0, 1.0])
    assert chance.outcome == "not judged"
    partly = Comparison("", [56.0, 56.1, 56.2], [1.0, 53.9, 1.0])
    assert partly.outcome == chance.outcome
    assert partly.why == "runs learned nothing, 2 of 3 of the second, which says nothing about the others"
    assert partly.chance is None
    held = Comparison("", [56.0, 56.1, 56.2], [55.0, 55.1, 55.2])
    assert held.why == ""
    assert Judged("", (chance,)).verdict == "not judged"
    both = Judged("", (held, chance))
    assert (both.verdict, both.counts) == ("held, as far as measured", "1 held, 1 not judged")


def test_the_longer_bases_are_as_long_as_generalist_and_experts_or_the_longest() -> None:
    epochs = {name: (epochs_of_row(label_as_long(name)), epochs_of_row(f"{name}: experts")) for name in PAPER_TABLE_3}
    assert epochs == {
        "alexnet-quick-c100": (20, 20),
        "alexnet-c100": (200, 200),
        "vgg11-c100": (200, 200),
        "nin-c100": (333, 366),
        "resnet56-c100": (77, 72),
    }
