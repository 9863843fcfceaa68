"""Stages that another run has trained already.

The key of a stage is a digest of every setting that its outcome depends on: a run can take over the files of a stage
with the same key. A sweep over recipes or experts then shares bases and generalists. On a GPU two trainings with one
key do not end alike to the bit, and two generalists may find different specialties, so experts are only taken over by a
run with the specialties that they were trained for.
"""

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nofe import config as configuration
from nofe import runs
from nofe.architectures.options import AdaptConfig
from nofe.config import GROUPS, WEIGHTS, RunConfig
from nofe.errors import NofeError, UserError
from nofe.files import expand_home
from nofe.runs import Run
from nofe.stages import FILES_OF_STAGE, base_recipes, forget_experts
from nofe.training.checkpoint import discard_checkpoints, stored_checkpoint


def stage_keys(config: RunConfig) -> dict[str, str]:
    """For each stage of a run, a digest of every setting that its outcome depends on, the seed included."""
    common = {
        "architecture": config.architecture,
        "seed": config.seed,
        "precision": config.precision,
        "data": configuration.unstructured(replace(config.data, root="")),
    }
    if (parts := replace(config.adapt, branch_width=1.0, parameters=0)) != AdaptConfig():
        common["adapt"] = configuration.unstructured(parts)
    recipes = base_recipes(config)
    keys = {stage: digest(common, base=configuration.unstructured(recipe)) for stage, recipe in recipes.items()}
    if config.until == "base":
        return keys
    keys["generalist"] = digest(
        common,
        specialties=configuration.unstructured(config.specialties),
        generalist=configuration.unstructured(config.generalist),
        base=next(iter(keys.values())) if config.needs_base else None,
    )
    if config.until == "experts":
        branches = {} if config.adapt == AdaptConfig() else {"branches": configuration.unstructured(config.adapt)}
        keys["experts"] = digest(
            common, generalist=keys["generalist"], experts=configuration.unstructured(config.experts), **branches
        )
    return keys


def trained_so_far(run: Run, config: RunConfig) -> set[str]:
    """The keys of the stages that a run of this configuration has finished; it may be under way.

    Their files are not read, so it is quick; whoever takes one over reads it.
    """
    listed = run.listed()
    return {key for stage, key in stage_keys(config).items() if listed.issuperset(FILES_OF_STAGE[stage])}


def donors_named(paths: Iterable[Path | str]) -> list[Path]:
    """The folders of runs to take stages from, as somebody names them."""
    donors = [expand_home(path) for path in paths]
    for donor in donors:
        if not (donor / runs.CONFIG).exists():
            raise UserError(f"--reuse {runs.no_run_in(donor)}")
    return donors


def adopt(run: Run, config: RunConfig, donors: Iterable[Path]) -> list[str]:
    """Copy finished stages with the same keys from other runs on the same data; returns their names.

    Runs that have the most of them come first.
    """
    if config.until == "experts" and not _finished(run, "generalist"):
        forget_experts(run)
    wanted = {key: stage for stage, key in stage_keys(config).items() if not _finished(run, stage)}
    if not wanted:
        return []
    adopted = []
    environment = run.read_json(runs.ENVIRONMENT)
    offers = [(Run(path), offer) for path in donors if (offer := _offered(Run(path), environment, wanted))]
    for donor, offer in sorted(offers, key=lambda each: -len(each[1])):
        for key, theirs in offer.items():
            if key in wanted and (theirs != "experts" or _same_specialties(donor, run)):
                ours = wanted.pop(key)
                _copy(donor, theirs, run, ours)
                adopted.append(ours)
    if "generalist" in adopted and stored_checkpoint(run, "experts") is not None:
        discard_checkpoints(run)  # of experts for the specialties before
    return adopted


def _offered(donor: Run, ours: Mapping[str, Any], wanted: Container[str]) -> dict[str, str]:
    """The wanted keys that a donor has finished, with its own name of each stage, a generalist before its experts.

    None if the donor had other images, or files of other content.
    """
    try:
        keys = stage_keys(configuration.from_json(donor.read_config()))
        theirs = donor.read_json(runs.ENVIRONMENT)
    except NofeError:
        return {}  # not a run, or of another version
    files = [each.get("files", {}) for each in (theirs, ours)]
    if theirs["data"]["fingerprint"] != ours["data"]["fingerprint"] or files[0].get(WEIGHTS) != files[1].get(WEIGHTS):
        return {}
    if files[0].get(GROUPS) != files[1].get(GROUPS):
        keys = {stage: key for stage, key in keys.items() if stage not in ("generalist", "experts")}
    return {key: stage for stage, key in keys.items() if key in wanted and _finished(donor, stage)}


def _same_specialties(donor: Run, run: Run) -> bool:
    both = run.has(runs.SPECIALTIES) and donor.has(runs.SPECIALTIES)
    return both and donor.read_json(runs.SPECIALTIES) == run.read_json(runs.SPECIALTIES)


def _finished(run: Run, stage: str) -> bool:
    return all(run.has(file) for file in FILES_OF_STAGE[stage])


def _copy(donor: Run, theirs: str, run: Run, ours: str) -> None:
    run.forget_metrics(ours, after_step=-1)
    for line in donor.metrics():
        if line["stage"] == theirs:
            run.append_metrics(line | {"stage": ours})
    for source, target in zip(FILES_OF_STAGE[theirs], FILES_OF_STAGE[ours], strict=True):
        run.write(target, donor.read(source))


def digest(common: Mapping[str, Any], **parts: Any) -> str:
    return hashlib.sha256(json.dumps({**common, **parts}, sort_keys=True).encode()).hexdigest()[:16]
