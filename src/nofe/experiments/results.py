"""Measured results: one JSON file for each trained run."""

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from nofe import runs
from nofe.config import RunConfig, to_json
from nofe.errors import UserError
from nofe.experiments.keys import keys_of
from nofe.experiments.tables import experiments_by_name
from nofe.files import slug
from nofe.reuse import digest
from nofe.runs import Run, write_atomically

# Files without this have the accuracy of each of the generalist's epochs but the last on specialties that were just
# updated, and that it was not trained for yet.
TESTED = "before the update"


def result_of(run: Run) -> dict[str, Any]:
    """All that a reader needs to judge the figures of a finished run."""
    summary, environment = run.read_json(runs.SUMMARY), run.read_json(runs.ENVIRONMENT)
    by_epoch: dict[str, list[float]] = defaultdict(list)
    moved = []
    for line in run.metrics():
        if "epoch" in line:
            by_epoch[line["stage"]].append(line["test_accuracy"])
        else:
            moved.append(line["moved"])
    data = environment.pop("data")
    return {
        "data": {"name": data["dataset"], "fingerprint": data["fingerprint"], "classes": len(data["classes"])},
        "config": summary["config"] | {"data": summary["config"]["data"] | {"root": "data"}},
        "environment": environment,
        "networks": summary["networks"],
        "test_accuracy_by_epoch": dict(by_epoch),
        **(
            {
                "groups": summary["groups"],
                "generalist_tested": TESTED,
                "classes_moved_by_update": moved,
                "specialties": run.read_json(runs.SPECIALTIES),
            }
            if run.has(runs.SPECIALTIES)
            else {}
        ),
    }


def file_result(run: Run, folder: Path, name: str | None = None, **more: Any) -> Path:
    """Write the result of a run, and `more` that was measured on it, to `folder/<device>/`, named by what was run.

    An experiment's has the data of the experiment: where a machine keeps ImageNet makes no other result of it.
    """
    result = result_of(run) | more
    config = result["config"]
    experiment = experiments_by_name().get(more.get("experiment", ""))
    if experiment is not None:
        config["data"]["name"] = result["data"]["name"] = experiment.config.data.name
    if name is None:
        name = f"{slug(config['data']['name'])}-{config['architecture']}-{config['specialties']['rule']}"
        name += f"-k{config['specialties']['count']}"
        name = _name_of_its_own(result, folder, name)
    return _filed(result, folder, name)


def _name_of_its_own(result: dict[str, Any], folder: Path, name: str) -> str:
    """The name, with a digest if a run with other settings has it already, such as another recipe."""
    keys, taken = keys_of(result), _path_of(result, folder, name)
    if taken.exists() and keys_of(json.loads(taken.read_text())) != keys:
        return f"{name}-{digest(keys)[:8]}"
    return name


def file_hdcnn(summary: dict[str, Any], run: Run, config: RunConfig, folder: Path, name: str, **more: Any) -> Path:
    """Write the result of an HD-CNN, under the configuration of the base that it is made of."""
    environment = run.read_json(runs.ENVIRONMENT)
    figures = {
        "accuracy": summary["top_1"],
        "top_5": summary["top_5"],
        "parameters": summary["parameters"],
        "seconds": round(summary["total_seconds"], 1),
    }
    by_epoch: dict[str, list[float]] = defaultdict(list)
    for line in run.metrics():
        if line.get("test_accuracy") is not None:
            by_epoch[line["stage"]].append(line["test_accuracy"])
    described = to_json(config)
    result = {
        "experiment": name,
        "config": described | {"data": described["data"] | {"root": "data"}},
        "environment": environment,
        "networks": {"hd-cnn": figures},
        "summary": summary,
        "test_accuracy_by_epoch": dict(by_epoch),
    } | more
    return _filed(result, folder, name)


def _path_of(result: dict[str, Any], folder: Path, name: str) -> Path:
    return folder / slug(result["environment"]["device"]) / f"{name}-seed{result['config']['seed']}.json"


def _filed(result: dict[str, Any], folder: Path, name: str) -> Path:
    first = _path_of(result, folder, name)
    later = (first.with_stem(f"{first.stem}-run{number}") for number in itertools.count(2))
    path = next(path for path in itertools.chain([first], later) if not _holds_another_run(path, result))
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
    return path


def _holds_another_run(path: Path, result: dict[str, Any]) -> bool:
    """Of the same configuration and seed, begun at another time: every run counts, so none may replace another."""
    if not path.exists():
        return False
    filed = json.loads(path.read_text())
    return keys_of(filed) == keys_of(result) and filed["environment"]["date"] != result["environment"]["date"]


def add_to_result(path: Path, **more: Any) -> None:
    write_atomically(path, (json.dumps(json.loads(path.read_text()) | more, indent=1) + "\n").encode())


def read_results(folder: Path) -> list[dict[str, Any]]:
    results = results_in(folder)
    if not results:
        raise UserError(f"{folder}: holds no results; file finished runs with nofe results RUN")
    return results


def results_in(folder: Path) -> list[dict[str, Any]]:
    """Every result filed under a folder, which may have none, with the file that it is from."""
    values = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*/*.json"))}
    return [
        value | {"file": path.relative_to(folder).as_posix()} for path, value in values.items() if "networks" in value
    ]
