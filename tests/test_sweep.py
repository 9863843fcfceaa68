"""Several seeds, numbers of experts and rules with one command."""

import json
from pathlib import Path

import pytest

from conftest import small_run
from nofe.cli import app
from nofe.config import with_settings
from nofe.errors import UserError
from nofe.recipes import default_run
from nofe.sweep import Training, TrainingOptions, sweep, sweep_in_words, trainings

SHORT = ("base.by=experts", "generalist.epochs=1", "experts.epochs=1", "specialties.rule=exact")


def test_there_is_a_training_for_each_combination() -> None:
    config = small_run()
    jobs = trainings(config, range(2), [2, 4], ["exact", "random"])
    assert len(jobs) == 8
    assert jobs[0].name == "exact-k2-seed0"
    assert {(job.config.specialties.rule, job.config.specialties.count, job.config.seed) for job in jobs} == {
        (rule, count, seed) for rule in ("exact", "random") for count in (2, 4) for seed in (0, 1)
    }
    [alone] = trainings(config, [3])
    assert (alone.config.specialties, alone.config.seed) == (config.specialties, 3)


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="is given twice; give each once"):
        trainings(small_run(), [0, 0])
    with pytest.raises(UserError, match="rule"):
        trainings(small_run(), [0], rules=["clairvoyant"])


def test_runs_end_side_by_side_share_their_base_and_are_compared(shades: Path, tmp_path: Path) -> None:
    config = with_settings(default_run("alexnet-quick-c100", f"folder:{shades}"), SHORT)
    jobs = trainings(config, [0, 1], [2, 4])
    said: list[str] = []
    outcome = sweep(jobs, tmp_path, TrainingOptions("cpu"), at_once=2, say=said.append)
    assert outcome.in_words() == ""
    assert len(said) == 4
    accuracies = {job.name: _networks(tmp_path, job)["experts"]["accuracy"] for job in jobs}
    bases = {(job.config.seed, _networks(tmp_path, job)["base"]["accuracy"]) for job in jobs}
    assert len(bases) == 2, "one for each seed, whatever K"
    words = sweep_in_words(jobs, tmp_path)
    mean = 50 * (accuracies["exact-k2-seed0"] + accuracies["exact-k2-seed1"])
    [row] = [line for line in words.splitlines() if line.split()[1:2] == ["2"]]
    assert f"{mean:.2f} ±" in row
    again = sweep(jobs, tmp_path, TrainingOptions("cpu"), at_once=1, say=said.append)
    assert again.in_words() == "", "nothing is left to do"


def test_the_command_says_what_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "--architecture", "small", "--seeds", "1", "--experts", "2", "--minutes", "0"]
    with pytest.raises(Exception, match=r"1 were not begun \(first: \S+-k2-seed0\); run the command again"):
        app([*arguments, "--device", "cpu", "--out", str(tmp_path)], standalone_mode=False)
    assert "The runs are in" in capsys.readouterr().out


def _networks(folder: Path, job: Training) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((folder / job.name / "summary.json").read_text())["networks"]
    return found
