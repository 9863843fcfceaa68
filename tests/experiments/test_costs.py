"""What is missing is priced by what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from nofe.config import to_json, with_settings
from nofe.experiments.costs import COMPILED, Left, cost_of, grown, growth_in, left_of, seconds_of_job, steps_in
from nofe.experiments.estimates import seconds_of
from nofe.experiments.reproduce import Filed, Job
from nofe.experiments.table import Experiment
from nofe.experiments.tables import TABLES
from nofe.recipes import default_run
from nofe.reuse import stage_keys

GROWTH = {2: 0.5, 10: 1.0, 50: 5.0}
EXPERTS = {row.label: row.experiment for row in TABLES["table-1"].rows}


def test_growth_is_that_of_the_file(tmp_path: Path) -> None:
    assert growth_in(tmp_path) == {}
    cases = {("base", 0): 1.0, ("loop", 10): 3.0, ("fused", 50): 1.8, ("fused", 10): 1.2}
    timings = [
        {"case": {"network": network, "experts": count, "task": "train"}, "ratio_to_base": ratio}
        for (network, count), ratio in cases.items()
    ]
    (tmp_path / "nvidia-x").mkdir()
    file = tmp_path / "nvidia-x" / "resnet56-c100-train-as-experts-grow.json"
    file.write_text(json.dumps({"environment": {"date": "2026-11-15"}, "timings": timings}))
    assert growth_in(tmp_path) == {10: 1.0, 50: pytest.approx(4.0)}


def test_growth_between_and_beyond_what_was_measured() -> None:
    assert [grown(GROWTH, count) for count in (2, 6, 10, 30, 50, 60)] == [0.5, 0.75, 1.0, 3.0, 5.0, 6.0]


def test_more_experts_cost_more_and_share_the_price_of_the_trunk() -> None:
    def seconds(label: str, growth: dict[int, float]) -> float:
        return seconds_of_job(Job(EXPERTS[label], 0), set(), growth)

    ten, fifty = seconds("fully-balanced, K=10", GROWTH), seconds("fully-balanced, K=50", GROWTH)
    assert ten == Job(EXPERTS["fully-balanced, K=10"], 0).seconds_of_training()
    assert ten < fifty < 5 * ten
    assert seconds("fully-balanced, K=50", {}) == ten, "nothing is known of the growth"
    assert seconds("base", GROWTH) == Job(EXPERTS["base"], 0).seconds_of_training()


def test_a_shared_stage_is_paid_for_once() -> None:
    one = EXPERTS["fully-balanced, K=50"]
    longer = Experiment("longer", with_settings(one.config, ["experts.epochs=150"]))
    alone, other = (left_of([each], 1, Filed([]), GROWTH).seconds for each in (one, longer))
    generalist = Experiment("generalist", with_settings(one.config, ["until=specialties"]))
    shared = left_of([generalist], 1, Filed([]), GROWTH).seconds
    assert left_of([one, longer], 1, Filed([]), GROWTH).seconds == pytest.approx(alone + other - shared)
    networks = {stage: {"accuracy": 0.5, "parameters": 1, "seconds": 1.0} for stage in stage_keys(one.config)}
    done = {"config": json.loads(json.dumps(to_json(one.config))), "networks": networks}
    assert left_of([one], 1, Filed([done]), GROWTH) == Left(0.0, unknown=False)


def test_side_by_side_costs_what_was_measured_so_and_nothing_else_has_an_estimate() -> None:
    """Three took 2.3 times as long as one, eight 4.5 to 4.8 times; WRN-28-10 keeps a GPU busy alone."""
    base, resnet = EXPERTS["base"], TABLES["table-4"].rows[-1].experiment
    for experiment in (base, resnet):
        for at_once, seeds, times in ((3, 3, 2.3), (3, 30, 2.3), (8, 8, 4.65), (8, 3, 2.3), (1, 8, 1)):
            alone, beside = (left_of([experiment], seeds, Filed([]), GROWTH, count).seconds for count in (1, at_once))
            assert beside / alone == pytest.approx(times / min(seeds, at_once), rel=0.03)
    of_today = TABLES["today"].experiments()
    assert not any(Job(experiment, 0).leaves_room for experiment in of_today)
    assert all(Job(experiment, 0).leaves_room for experiment in (base, resnet))
    assert not left_of(of_today, 3, Filed([]), GROWTH).unknown
    assert str(left_of(of_today, 3, Filed([]), GROWTH, 8)) == "not known"
    assert str(left_of([*of_today, base], 3, Filed([]), GROWTH, 8)).startswith("more than ")


def test_estimates_are_those_of_the_measured_steps() -> None:
    """Steps of an epoch, and some time to test."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "nvidia-h200" / "steps-by-network.json"
    measured = [each for each in json.loads(file.read_text())["steps"] if each["precision"] == "bf16"]
    found = set()
    for each in measured:
        if each["network"] == "loop":
            continue
        config = default_run(each["architecture"], "cifar100")
        stage = "experts" if each["experts"] else "base"
        steps = 50_000 // each["batch"] * each["milliseconds"] / 1000
        assert steps < seconds_of(config, stage, 1) < 1.1 * steps, each
        found.add((each["architecture"], stage))
    assert {("wrn-28-10", "base"), ("wrn-28-10", "experts"), ("resnet18-cifar", "base")} <= found


def test_a_network_without_a_time_of_its_own_is_priced_by_its_multiplications() -> None:
    def seconds(architecture: str, *settings: str, stage: str = "experts") -> float:
        return seconds_of(with_settings(default_run(architecture, "cifar100"), settings), stage, 1)

    base = seconds("wrn-28-10", stage="base")
    narrow, wide = (seconds("wrn-28-10", f"adapt.branch_width={width}") for width in (0.25, 0.5))
    assert wide - base == pytest.approx(2 * (narrow - base), rel=0.02), "two convolutions, half as wide"
    assert seconds("wrn-28-10", "adapt.branch_width=0.5", "specialties.count=5") == pytest.approx(narrow, rel=0.01)
    assert seconds("wrn-28-10", "data.hold_out=0.1", stage="base") == pytest.approx(0.9 * base)
    larger = seconds("resnet56-c100-deeper", stage="base") / seconds("resnet56-c100", stage="base")
    assert larger == pytest.approx(1.38, abs=0.01), "as the experts multiply"


def test_what_nobody_has_measured_is_not_known() -> None:
    imagenet = TABLES["imagenet"].experiments()
    assert str(left_of(imagenet, 1, Filed([]), GROWTH)) == "not known"
    assert str(left_of([*imagenet, EXPERTS["base"]], 1, Filed([]), GROWTH)).startswith("more than ")


def test_training_against_the_base_is_by_steps_of_one_file_and_epochs_of_the_recipes(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-x"
    folder.mkdir()

    def row(network: str, experts: int, milliseconds: float, **more: Any) -> dict[str, Any]:
        shape = {"architecture": "vgg11-c100", "precision": "bf16", "batch": 128}
        return shape | {"network": network, "experts": experts, "milliseconds": milliseconds} | more

    def write(name: str, date: str, rows: list[dict[str, Any]]) -> None:
        (folder / name).write_text(json.dumps({"environment": {"date": date}, "steps": rows}))

    write("a.json", "2026-11-15", [row("base", 0, 1.0), row("fused", 10, 2.0), row("loop", 10, 9.0)])
    write("b.json", "2026-11-16", [row("fused", 10, 7.0)])  # without its base
    write("c.json", "2026-11-14", [row("base", 0, 1.0), row("fused", 10, 5.0)])  # older
    write("d.json", "2026-11-17", [row("base", 0, 1.0, batch=64), row("fused", 10, 5.0, batch=64)])
    config = next(row for row in TABLES["table-3"].rows if row.label == "vgg11-c100: experts").experiment.config
    cost = cost_of(config, 12_800, steps_in(tmp_path))
    assert cost is not None
    assert cost.step.file == "nvidia-x/a.json"
    assert (cost.base, cost.generalist, cost.experts) == pytest.approx((14.0, 6.0, 28.0))  # 140, 60 and 140 epochs
    assert cost_of(EXPERTS["fully-balanced, K=10"].config, 12_800, steps_in(tmp_path)) is None


def test_steps_are_read_from_tables_of_the_benchmark(tmp_path: Path) -> None:
    cases = [("base", COMPILED, 0, 6.0), ("fused", COMPILED, 10, 7.0), ("base", "eager", 0, 30.0)]
    timings = [
        {
            "case": {
                "network": network,
                "mode": mode,
                "task": "train",
                "classes": 100,
                "experts": experts,
                "batch": 128,
            },
            "milliseconds": milliseconds,
        }
        for network, mode, experts, milliseconds in cases
    ]
    table = {"architecture": "resnet56-c100", "environment": {"date": "2026", "precision": "bf16"}, "timings": timings}
    (tmp_path / "nvidia-x").mkdir()
    (tmp_path / "nvidia-x" / "t.json").write_text(json.dumps(table))
    losses = {"architecture": "resnet56-c100", "environment": {"precision": "bf16"}, "steps": 50, "compared": {}}
    (tmp_path / "nvidia-x" / "losses.json").write_text(json.dumps(losses))
    [step] = steps_in(tmp_path)
    assert (step.milliseconds_of_base, step.milliseconds_of_experts) == (6.0, 7.0)


def test_the_estimate_for_imagenet_is_that_of_the_measured_rates() -> None:
    root = Path(__file__).parents[2]
    folder = root / "benchmarks" / "results" / "nvidia-h200"
    shards = json.loads((folder / "data-shards-compiled.json").read_text())
    [step] = [
        each
        for each in json.loads((folder / "steps-by-network.json").read_text())["steps"]
        if each["architecture"] == "alexnet-caffe"
    ]
    config = next(row for row in TABLES["imagenet"].rows if row.label == "fully-balanced, K=10").experiment.config
    assert (step["experts"], step["batch"], step["precision"]) == (10, config.experts.batch, config.precision)
    assert (shards["experts"], shards["batch"], shards["classes"]) == (10, config.experts.batch, 1000)
    rate = shards["images_per_second"]["train"]
    epoch = 1_281_167 / rate  # training images of ILSVRC 2012
    experts, generalist = epoch * config.experts.epochs, epoch * config.generalist.epochs
    page = " ".join((root / "docs" / "reproducing.md").read_text().split())
    assert f"ten experts train on {round(rate, -2):,.0f} images/s, in bf16 and compiled" in page
    assert f"the step alone does {round(shards['images_per_second']['step'], -2):,.0f}." in page
    both = config.generalist.epochs + config.experts.epochs
    base = config.base.paper.epochs
    assert f"| one epoch of 1.28 million images | 1 | {epoch:.0f} seconds |" in page
    assert f"| generalist | {config.generalist.epochs} | {generalist / 60:.0f} minutes |" in page
    assert f"| experts, K=10 | {config.experts.epochs} | {experts / 3600:.1f} hours |" in page
    assert f"| generalist and experts | {both} | {(experts + generalist) / 3600:.1f} hours |" in page
    assert f"| base | {base} | {base * epoch / 3600:.1f} hours |" in page
    bytes_a_second = rate * 1e6 * shards["megabytes"] / shards["images"]
    needed = f"{round(bytes_a_second / 1e6, -1):.0f} MB/s, or {epoch * bytes_a_second / 1e9:.0f} GB"
    assert f"must give {needed} must fit" in page
    assert f"whose step alone does {round(step['images_per_second'], -2):,.0f} images/s" in page
    assert step["images_per_second"] > rate
