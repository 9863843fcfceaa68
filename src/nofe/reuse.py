"""Stages that another run has trained already.

A stage is known by all that decides its outcome: two runs whose stages have the same key would train the same network
there, so the second can take the first one's files. A sweep over recipes or experts then shares bases and generalists.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nofe import config as configuration
from nofe import runs
from nofe.architectures.options import AdaptConfig
from nofe.config import RunConfig
from nofe.errors import NofeError
from nofe.runs import Run
from nofe.stages import FILES_OF_STAGE, base_recipes


def stage_keys(config: RunConfig) -> dict[str, str]:
    """For each stage of a run, a digest of all that decides its outcome, the seed included."""
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


def adopt(run: Run, config: RunConfig, donors: Iterable[Path]) -> list[str]:
    """Copy the finished stages of other runs on the same data that would come out the same here; names them."""
    wanted = {key: stage for stage, key in stage_keys(config).items() if not _finished(run, stage)}
    adopted = []
    fingerprint = run.read_json(runs.ENVIRONMENT)["data"]["fingerprint"]
    for path in donors:
        if not wanted:
            break
        try:
            donor = Run(path)
            keys = stage_keys(configuration.from_json(donor.read_config()))
            same_data = donor.read_json(runs.ENVIRONMENT)["data"]["fingerprint"] == fingerprint
        except NofeError:
            continue  # not a run, or of another version
        for theirs, key in keys.items():
            if same_data and key in wanted and _finished(donor, theirs):
                ours = wanted.pop(key)
                _copy(donor, theirs, run, ours)
                adopted.append(ours)
    return adopted


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
