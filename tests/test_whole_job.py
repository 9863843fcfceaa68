"""benchmarks/whole_job.py, with a training that takes no time."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nofe.runs import Run

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "whole_job.py"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What was run, and in which environment; a run folder appears where it should."""
    commands: list[tuple[list[str], dict[str, str]]] = []

    def train(command: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        commands.append((command, env))
        if "glyphs" in command:
            return SimpleNamespace(returncode=0)
        if "unknown" in command:
            return SimpleNamespace(returncode=2)
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True)
        seed = int(command[command.index("--seed") + 1])
        content: dict[str, Any] = {
            "config.json": {"specialties": {"rule": command[command.index("--rule") + 1]}},
            "environment.json": {"device": "NVIDIA H200", "seed": seed, "data": {"classes": 100}},
            "time.json": {"generalist": 45.04, "experts": 180.0},
            "summary.json": {"networks": {"experts": {"accuracy": 0.781}}},
        }
        for name, each in content.items():
            Run(out).write_json(name, each)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", train)
    return commands


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["whole_job.py", *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_jobs_are_added_to_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[tuple[list[str], dict[str, str]]]
) -> None:
    run(monkeypatch, "--results", tmp_path, "--seed", 3)
    run(monkeypatch, "--results", tmp_path, "--seed", 4, "--rule", "exact", "--keep", tmp_path / "kept")
    file = json.loads((tmp_path / "nvidia-h200" / "resnet56-c100-whole-job.json").read_text())
    assert [(job["seed"], job["rule"]) for job in file["jobs"]] == [(3, "fully-balanced"), (4, "exact")]
    assert file["jobs"][0]["parts"] == {"generalist": 45.0, "experts": 180.0}
    assert file["jobs"][0]["accuracy"] == 0.781
    assert "data" not in file["jobs"][0]["environment"]
    assert (tmp_path / "kept" / "summary.json").exists()
    caches = [env[name] for _, env in trained for name in ("NOFE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    assert len(set(caches)) == 12, "each job compiles for itself, and so does the small one that has files read before"
    assert [command[command.index("--dataset") + 1] for command, _ in trained] == ["glyphs", "cifar100"] * 2
    assert 0 <= file["jobs"][0]["until_images_are_read"] < 5
    assert 0 <= file["jobs"][0]["after_the_report"] < 5
    assert file["jobs"][0]["files_in_memory"]


def test_a_training_that_fails_is_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[tuple[list[str], dict[str, str]]]
) -> None:
    with pytest.raises(SystemExit, match="nofe train ended with 2; nothing was added"):
        run(monkeypatch, "--results", tmp_path, "--rule", "unknown")
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_there_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[tuple[list[str], dict[str, str]]]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--keep", tmp_path)
    assert not trained
