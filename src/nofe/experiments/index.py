"""Which result file a figure is taken from."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nofe.experiments.keys import keys_of, keys_of_experiment
from nofe.experiments.reproduce import Job
from nofe.experiments.table import Experiment, Row
from nofe.experiments.tables import TABLES

HARDLY = 0.1  # of the classes, over all updates: what so few moves leave is random still


@dataclass(frozen=True)
class Measured:
    """One network of one run."""

    seed: int
    accuracy: float  # per cent: top-1 of a network over classes; over specialties, of a generalist
    top_5: float | None
    parameters: int
    seconds: float
    result: Mapping[str, Any]
    stage: str


def stayed_as_drawn(measured: Sequence[Measured]) -> bool:
    """Whether specialties that are learned ended, in every run, as the random ones that they began as, or nearly so."""
    moved = [(one.result.get("classes_moved_by_update"), one.result["data"]["classes"]) for one in measured]
    return bool(moved) and all(updates and sum(updates) <= HARDLY * classes for updates, classes in moved)


class Index:
    """Measured networks by what they are: the key of their stage. Where it was trained several times, every run counts.

    What else was measured on a run is found by its experiment and seed: it is not the stage's alone.
    """

    def __init__(self, results: Iterable[Mapping[str, Any]]) -> None:
        self._by_key: dict[str, list[Measured]] = defaultdict(list)
        self._by_experiment: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)  # newest first
        results = list(results)
        self._seeds = sorted({result["config"]["seed"] for result in results})
        for result in sorted(results, key=age, reverse=True):
            keys = keys_of(result)
            for stage, key in keys.items():
                figures = result["networks"].get(stage)
                if figures is not None:
                    self._by_key[key].append(_measured(result, stage, figures))
            if "experiment" in result:
                self._by_experiment[result["experiment"], result["config"]["seed"]].append(result)

    def of(self, row: Row) -> list[Measured]:
        """Every run of a row, by seed, a seed's oldest first."""
        keys = (keys_of_experiment(row.experiment, seed)[row.network] for seed in self._seeds)
        found = [each for key in keys for each in reversed(self._by_key.get(key, []))]
        if row.crops > 1:
            found = [_by_ten_crops(each) for each in found if each.stage in each.result.get("ten_crops", {})]
        return _without_copies(found)

    def measures(self, experiment: Experiment, measure: str) -> dict[int, Any]:
        """What was measured beside accuracy on the runs of an experiment, by seed."""
        found = {}
        for seed in self._seeds:
            for result in self._by_experiment.get((experiment.name, seed), ()):
                if measure in result and Job(experiment, seed).made(result):  # else it is of an earlier recipe
                    found[seed] = result[measure]
                    break
        return found

    def in_tables(self, result: Mapping[str, Any]) -> bool:
        """Whether some table has a row for one of its networks."""
        keys, wanted = keys_of(result), _keys_of_rows(result["config"]["seed"])
        return any(keys[stage] in wanted for stage in result["networks"] if stage in keys)


def _without_copies(measured: Iterable[Measured]) -> list[Measured]:
    """One of each training: a run that took a stage over from another has the same epochs, to the millisecond.

    Its last figure is left out of the comparison: it was measured again, and on a GPU may differ by an image.
    """
    trainings = {}
    for each in measured:
        by_epoch = each.result.get("test_accuracy_by_epoch", {}).get(each.stage, ())
        trainings[each.seed, each.seconds, tuple(by_epoch)] = each
    return list(trainings.values())


@functools.cache
def _keys_of_rows(seed: int) -> frozenset[str]:
    rows = (row for table in TABLES.values() for row in table.rows)
    return frozenset(keys_of_experiment(row.experiment, seed)[row.network] for row in rows)


def age(result: Mapping[str, Any]) -> tuple[str, str]:
    """By date, and for one date by name: nothing must depend on the order of reading."""
    return result.get("environment", {}).get("date", ""), _file(result)


def _file(result: Mapping[str, Any]) -> str:
    return str(result.get("file", ""))


def _by_ten_crops(measured: Measured) -> Measured:
    figures = measured.result["ten_crops"][measured.stage]
    return replace(measured, accuracy=100 * figures["top_1"], top_5=100 * figures["top_5"])


def _measured(result: Mapping[str, Any], stage: str, figures: Mapping[str, Any]) -> Measured:
    top_5 = figures.get("top_5")
    return Measured(
        seed=result["config"]["seed"],
        accuracy=100 * figures["accuracy"],
        top_5=None if top_5 is None else 100 * top_5,
        parameters=figures["parameters"],
        seconds=figures["seconds"],
        result=result,
        stage=stage,
    )
