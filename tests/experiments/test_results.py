"""The page says what the files say."""

import json
from pathlib import Path

import pytest

from conftest import small_dataset, small_run
from nofe.errors import UserError
from nofe.experiments.results import file_result, read_results, results_page
from nofe.pipeline import train
from nofe.runs import Run
from nofe.training.runtime import make_runtime

ROOT = Path(__file__).parents[2]


def test_the_committed_page_agrees_with_the_committed_files() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results_page(read_results(ROOT / "results"))


def test_every_committed_result_names_device_versions_date_seed_and_commit() -> None:
    for result in read_results(ROOT / "results"):
        environment = result["environment"]
        assert all(environment[name] for name in ("device", "versions", "date", "commit", "precision"))
        assert result["config"]["seed"] == environment["seed"]
        assert len(result["test_accuracy_by_epoch"]["experts"]) == result["config"]["experts"]["epochs"]


def test_mean_deviation_and_difference(tmp_path: Path) -> None:
    results = []
    for seed, (base, experts) in enumerate([(0.37, 0.45), (0.39, 0.47), (0.38, 0.46)]):
        result = json.loads(next((ROOT / "results").glob("*/cifar100-alexnet-quick*seed0.json")).read_text())
        result["config"]["seed"] = seed
        result["networks"]["base"]["accuracy"], result["networks"]["experts"]["accuracy"] = base, experts
        results.append(result)
    page = results_page(results)
    assert "| base | 38.00 ± 1.00 (n=3) | 37.00, 39.00, 38.00 | 37.94 | +0.06 |" in page
    assert "| experts | 46.00 ± 1.00 (n=3) | 45.00, 47.00, 46.00 | 45.58 | +0.42 |" in page
    assert "by the same recipe: 8.00 ± 0.00 (n=3)" in page


def test_a_run_is_filed_with_its_figures_and_without_paths(tmp_path: Path) -> None:
    config = small_run("experts.epochs=1", "generalist.epochs=1", f"data.root={tmp_path}")
    summary = train(config, tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"))
    path = file_result(Run(tmp_path / "run"), tmp_path / "results")
    assert path.name == "small-alexnet-quick-c100-fully-balanced-k2-seed0.json"
    assert str(tmp_path) not in path.read_text()
    [result] = read_results(tmp_path / "results")
    assert result["networks"] == summary["networks"]
    assert result["test_accuracy_by_epoch"]["experts"][-1] == summary["networks"]["experts"]["accuracy"]


def test_no_results(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no results"):
        read_results(tmp_path)
