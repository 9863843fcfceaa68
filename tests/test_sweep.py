"""Several seeds, numbers of experts and rules with one command."""

import json
import shutil
import statistics
from pathlib import Path

import pytest

from conftest import small_run
from nofe import runs
from nofe.cli import app
from nofe.cli.experiments import _require_all_done
from nofe.config import with_settings
from nofe.errors import NofeError, RunError, UserError
from nofe.recipes import default_run
from nofe.side_by_side import Outcome
from nofe.sweep import Training, TrainingOptions, sweep, sweep_in_words, trainings
from test_cli import answered, command, refusal

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
    gains = [100 * (accuracies[f"exact-k2-seed{seed}"] - dict(bases)[seed]) for seed in (0, 1)]
    head = words.splitlines()[0].split()
    assert head[-4:] == ["base", "generalist", "experts", "gain"]
    assert row.endswith(f"{statistics.mean(gains):.2f} ± {statistics.stdev(gains):.2f}")
    again = sweep(jobs, tmp_path, TrainingOptions("cpu"), at_once=1, say=said.append)
    assert again.in_words() == "", "nothing is left to do"


def test_a_run_begins_as_soon_as_the_base_that_it_shares_is_trained(shades: Path, tmp_path: Path) -> None:
    """The first has its generalist and its experts still to train."""
    config = with_settings(default_run("alexnet-quick-c100", f"folder:{shades}"), SHORT)
    jobs = trainings(with_settings(config, ["generalist.epochs=100"]), [0], [2, 4])
    assert sweep(jobs, tmp_path, TrainingOptions("cpu"), at_once=2).in_words() == ""
    first, second = (tmp_path / job.name for job in jobs)
    assert (second / runs.CONFIG).stat().st_mtime < (first / runs.GENERALIST).stat().st_mtime
    assert (second / runs.BASE).read_bytes() == (first / runs.BASE).read_bytes()


def test_a_rule_that_learned_nothing_is_told_below_the_table(shades: Path, tmp_path: Path) -> None:
    """Or random specialties would be compared with others as its own."""
    settings = (*SHORT, "generalist.epochs=1", "generalist.update_every=1", "base.by=none")
    config = with_settings(default_run("alexnet-quick-c100", f"folder:{shades}"), settings)
    jobs = trainings(config, [0, 1], [2], ["exact", "random"])
    sweep(jobs, tmp_path, TrainingOptions("cpu"), at_once=1)
    head, _, *_, note = sweep_in_words(jobs, tmp_path).splitlines()
    assert "gain" not in head, "over no base"
    assert note.startswith("exact, K=2: 2 of 2 runs: there was no update of the specialties, so they are still the")


def test_what_all_runs_warn_of_is_said_once(shades: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By the command itself, with its name before it, and not by each of its processes."""
    data = tmp_path / "shades"
    shutil.copytree(shades, data)
    next(path for path in data.rglob("*") if path.is_file()).with_name("notes.txt").write_text("of no use")
    answer = command(*_short(data, tmp_path / "sweep", "base.by=none"), "--experts", "4", "--side-by-side", "2")
    assert answer.code == 0
    told = [line for line in (answer.err + capfd.readouterr().err).splitlines() if "notes.txt" in line]
    assert told == [f"nofe: {told[0].removeprefix('nofe: ')}"]


def test_the_command_says_what_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "--architecture", "small", "--seeds", "1", "--experts", "2", "--minutes", "0"]
    with pytest.raises(Exception, match=r"1 not begun \(first: \S+-k2-seed0\); run the command again"):
        app([*arguments, "--device", "cpu", "--out", str(tmp_path)], standalone_mode=False)
    assert "The runs are in" in capsys.readouterr().out


def _short(shades: Path, out: Path, *more: str) -> list[str]:
    settings = [word for setting in (*SHORT, *more) for word in ("--set", setting)]
    data = ["--dataset", f"folder:{shades}", "--architecture", "alexnet-quick-c100", "--experts", "2"]
    return ["sweep", *data, "--seeds", "1", "--device", "cpu", "--out", str(out), *settings]


def test_the_runs_of_other_settings_are_no_results_of_these(shades: Path, tmp_path: Path) -> None:
    def jobs(epochs: int) -> list[Training]:
        settings = (*SHORT, "base.by=none", f"experts.epochs={epochs}")
        return trainings(with_settings(default_run("alexnet-quick-c100", f"folder:{shades}"), settings), [0], [2])

    assert answered(*_short(shades, tmp_path, "base.by=none"))
    assert sweep_in_words(jobs(1), tmp_path).splitlines()[-1].split()[2] == "1"
    assert sweep_in_words(jobs(2), tmp_path).splitlines()[-1].split() == ["exact", "2", "0"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    told = refusal(*_short(shades, tmp_path, "base.by=none", "experts.epochs=2"))
    assert "exact-k2-seed0: was started with another configuration (experts.epochs was 1, is 2)" in told
    assert "name another folder with --out" in told
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--dataset", "folder:nowhere"], "nowhere: no such folder"),
        (["--dataset", "glyhps"], "glyhps: no such data set"),
        (["--experts", "9"], "--experts 9: more than the 4 classes"),
        (["--set", "adapt.weights=nowhere.pth"], "--weights nowhere.pth: no such file"),
    ],
)
def test_wrong_input_is_told_once_and_before_any_run_is_begun(
    more: list[str], said: str, shades: Path, tmp_path: Path
) -> None:
    assert said in refusal(*_short(shades, tmp_path / "sweep"), *more)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("setting", "option"),
    [("seed=3", "--seeds"), ("specialties.count=4", "--experts"), ("specialties.rule=random", "--rule")],
)
def test_what_a_sweep_sets_itself_is_not_passed_over(setting: str, option: str, tmp_path: Path) -> None:
    arguments = ["sweep", "--experts", "2", "--rule", "exact", "--minutes", "0", "--out", tmp_path / "sweep"]
    told = f"--set {setting}: a sweep sets this by {option}; use that option alone"
    assert refusal(*arguments, "--set", setting) == told


def test_the_folder_of_a_run_is_none_for_runs(shades: Path, tmp_path: Path) -> None:
    answered(*_short(shades, tmp_path, "base.by=none"))
    run = tmp_path / "exact-k2-seed0"
    before = sorted(run.rglob("*"))
    assert (
        refusal(*_short(shades, run))
        == f"{run}: is the folder of one run and cannot hold others; name another with --out"
    )
    assert sorted(run.rglob("*")) == before


def test_what_failed_is_not_gone_on_with(shades: Path, tmp_path: Path) -> None:
    """Wrong input that only the run itself can find is wrong input, too."""
    shutil.copytree(shades, tmp_path / "shades")
    (tmp_path / "shades" / "train" / "shade0" / "0.png").write_bytes(b"no image")
    answer = command(*_short(tmp_path / "shades", tmp_path / "sweep"))
    assert answer.code == 2
    assert "1 of 36 images cannot be read: train/shade0/0.png" in answer.out
    assert answer.err == "nofe: sweep: 1 failed (first: exact-k2-seed0); each line above says why\n"


@pytest.mark.parametrize(
    ("outcome", "kind", "said"),
    [
        (Outcome(failed=["a"]), RunError, "sweep: 1 failed (first: a); each line above says why"),
        (Outcome(failed=["a", "b"], refused=["a"]), RunError, "sweep: 2 failed (first: a); each line above says why"),
        (Outcome(stopped=["a"]), RunError, "sweep: 1 stopped (first: a); run the command again to go on"),
        (
            Outcome(failed=["a"], refused=["a"], not_begun=["b"]),
            UserError,
            "sweep: 1 failed (first: a); 1 not begun (first: b); run the command again to go on with those that "
            "did not fail",
        ),
    ],
)
def test_what_to_do_about_runs_that_did_not_end(outcome: Outcome, kind: type[NofeError], said: str) -> None:
    with pytest.raises(NofeError) as told:
        _require_all_done("sweep", outcome)
    assert (type(told.value), str(told.value)) == (kind, said)


def _networks(folder: Path, job: Training) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((folder / job.name / "summary.json").read_text())["networks"]
    return found
