"""Stages of other runs: taken where they were asked for alike, and only with what they belong to."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import small_dataset, small_run
from nofe import runs
from nofe.errors import UserError
from nofe.pipeline import train
from nofe.reuse import adopt
from nofe.runs import Run
from nofe.stages import FILES_OF_STAGE
from nofe.training.checkpoint import Checkpoint, stored_checkpoint, write_checkpoint
from nofe.training.runtime import make_runtime

SHORT = small_run("generalist.epochs=1", "experts.epochs=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reuse") / "whole"
    train(SHORT, run, dataset=small_dataset(), runtime=make_runtime("cpu"))
    return run


def with_other_specialties(run: Path, to: Path) -> Path:
    """What the same training may end with on another day of a GPU; its experts are not trained yet."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns(runs.CHECKPOINTS))
    other = Run(to)
    described = other.read_json(runs.SPECIALTIES)
    first, second = described["specialties"]
    for what in ("class_ids", "class_names"):
        first[what][0], second[what][0] = second[what][0], first[what][0]
    other.write_json(runs.SPECIALTIES, described)
    other.discard(*FILES_OF_STAGE["experts"], runs.SUMMARY)
    return to


def test_a_run_with_all_stages_comes_before_one_with_some(whole: Path, tmp_path: Path) -> None:
    early = with_other_specialties(whole, tmp_path / "early")
    train(SHORT, tmp_path / "run", dataset=small_dataset(), runtime=make_runtime("cpu"), donors=[early, whole])
    for file in (runs.SPECIALTIES, *FILES_OF_STAGE["experts"]):
        assert (tmp_path / "run" / file).read_bytes() == (whole / file).read_bytes()


def test_what_was_made_from_another_file_of_the_same_name_is_not_taken(tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    config = small_run(
        "generalist.epochs=1", "experts.epochs=1", "specialties.rule=groups", f"specialties.groups={groups}"
    )
    names = list(small_dataset().class_names)

    def trained(run: str, split: int, **options: Any) -> Run:
        groups.write_text(json.dumps({"a": names[:split], "b": names[split:]}))
        train(config, tmp_path / run, dataset=small_dataset(), runtime=make_runtime("cpu"), **options)
        return Run(tmp_path / run)

    def sizes(run: Run) -> list[int]:
        return [each["size"] for each in run.read_json(runs.SPECIALTIES)["specialties"]]

    first = trained("first", 3)
    second = trained("second", 4, donors=[tmp_path / "first"])
    assert (sizes(first), sizes(second)) == ([3, 5], [4, 4])
    assert second.read(runs.BASE) == first.read(runs.BASE), "which no groups decide"
    second.discard(runs.SPECIALTIES, runs.SUMMARY)
    with pytest.raises(UserError, match=r"the file of specialties\.groups changed since the run was started"):
        trained("second", 5, resume=True)


def test_experts_are_not_taken_for_specialties_that_are_not_theirs(whole: Path, tmp_path: Path) -> None:
    """The shapes would fit, and logits land on the wrong classes."""
    run = with_other_specialties(whole, tmp_path / "run")
    before = json.loads((run / runs.SPECIALTIES).read_text())
    train(SHORT, run, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"), donors=[whole])
    assert json.loads((run / runs.SPECIALTIES).read_text()) == before
    weights = FILES_OF_STAGE["experts"][0]
    assert (run / weights).read_bytes() != (whole / weights).read_bytes()


def test_experts_do_not_outlive_the_generalist_that_another_replaces(whole: Path, tmp_path: Path) -> None:
    donor = with_other_specialties(whole, tmp_path / "donor")
    shutil.copytree(whole, tmp_path / "run")
    run = Run(tmp_path / "run")
    (run.path / runs.GENERALIST).unlink()
    train(SHORT, run.path, resume=True, dataset=small_dataset(), runtime=make_runtime("cpu"), donors=[donor])
    assert run.read(runs.SPECIALTIES) == Run(donor).read(runs.SPECIALTIES)
    assert run.read(runs.NETWORK) != Run(whole).read(runs.NETWORK), "trained on the specialties that are there now"


@pytest.mark.parametrize(("stage", "kept"), [("experts", False), ("base", True)])
def test_what_was_under_way_on_other_specialties_is_not_gone_on_with(
    whole: Path, tmp_path: Path, stage: str, kept: bool
) -> None:
    donor = with_other_specialties(whole, tmp_path / "donor")
    shutil.copytree(whole, tmp_path / "run")
    run = Run(tmp_path / "run")
    (run.path / runs.GENERALIST).unlink()
    write_checkpoint(run, Checkpoint(stage, 3, {"totals": torch.zeros(2)}, {}))
    assert adopt(run, SHORT, [donor]) == ["generalist"]
    assert (stored_checkpoint(run, stage) is not None) == kept


def test_a_donor_without_its_specialties_gives_no_experts(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "donor")
    (tmp_path / "donor" / runs.SPECIALTIES).write_text("{")
    run = with_other_specialties(whole, tmp_path / "run")
    assert adopt(Run(run), SHORT, [tmp_path / "donor"]) == []
