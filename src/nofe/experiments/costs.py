"""What training costs, by steps that were measured: the missing runs of a table, and experts beside their base."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nofe.config import RunConfig
from nofe.experiments.estimates import epochs_of, seconds_of
from nofe.experiments.reproduce import Filed, Job
from nofe.experiments.table import Experiment
from nofe.forecast import beside_others
from nofe.reuse import stage_keys

PLANNED_EXPERTS = 10  # K of the times that `reproduce` plans by
PRECISION_OF_GPUS = "bf16"  # what `auto` is
GROWTH_FILES = "*-train-as-experts-grow.json"

# Time that K experts add to the step of the base, over that of ten; by K, ascending.
Growth = Mapping[int, float]

COMPILED = "compiled+captured"


@dataclass(frozen=True)
class Step:
    """Milliseconds of a training step of base and experts, measured in one file."""

    architecture: str
    precision: str
    experts: int
    batch: int
    milliseconds_of_base: float
    milliseconds_of_experts: float
    date: str
    file: str  # below the folder of benchmarks


def steps_in(benchmarks: Path) -> list[Step]:
    """Compiled and captured steps of a GPU over 100 classes, of bases and fused experts: from every file of them."""
    found = []
    for path in sorted(benchmarks.glob("nvidia-*/*.json")):
        table = json.loads(path.read_text())
        measured = _steps_of(table)
        for (architecture, precision, experts, batch, network), milliseconds in measured.items():
            base = measured.get((architecture, precision, 0, batch, "base"))
            if network == "fused" and base is not None:
                date, file = table["environment"]["date"], path.relative_to(benchmarks).as_posix()
                found.append(Step(architecture, precision, experts, batch, base, milliseconds, date, file))
    return found


def _steps_of(table: Mapping[str, Any]) -> dict[tuple[str, str, int, int, str], float]:
    """By architecture, precision, K, batch and network."""
    if "compared" in table:  # losses, over so many steps
        return {}
    steps = {
        (each["architecture"], each["precision"], each["experts"], each["batch"], each["network"]): each["milliseconds"]
        for each in table.get("steps", ())
    }
    for timing in table.get("timings", ()):
        case = timing["case"]
        if (case["task"], case["mode"], case["classes"]) == ("train", COMPILED, 100):
            precision = table["environment"]["precision"]
            key = (table["architecture"], precision, case["experts"], case["batch"], case["network"])
            steps[key] = timing["milliseconds"]
    return steps


@dataclass(frozen=True)
class Cost:
    """Seconds of the steps of each stage: of base and experts by the same recipe."""

    base: float
    generalist: float
    experts: float
    step: Step


def cost_of(config: RunConfig, images: int, steps: Iterable[Step]) -> Cost | None:
    """By the newest step of such a network; None if nobody has measured one."""
    fitting = [
        step
        for step in steps
        if (step.architecture, step.experts) == (config.architecture, config.specialties.count)
        and step.precision == (config.precision if config.precision != "auto" else PRECISION_OF_GPUS)
        and step.batch == config.experts.batch == config.generalist.batch
    ]
    if not fitting:
        return None
    step = max(fitting, key=lambda each: (each.date, each.file))
    base, experts = (  # seconds an epoch; the generalist is the base with fewer outputs
        images / step.batch * milliseconds / 1000
        for milliseconds in (step.milliseconds_of_base, step.milliseconds_of_experts)
    )
    epochs, of_generalist = config.experts.epochs, config.generalist.epochs
    return Cost(epochs * base, of_generalist * base, epochs * experts, step)


@dataclass(frozen=True)
class Left:
    """What is missing, on an H200."""

    seconds: float  # of what has an estimate
    unknown: bool  # whether something has none

    def __str__(self) -> str:
        """In minutes."""
        if self.unknown:
            return f"more than {self.seconds / 60:.1f}" if self.seconds else "not known"
        return f"{self.seconds / 60:.1f}"


def growth_in(benchmarks: Path) -> Growth:
    """By the newest benchmark of a training step over K on a GPU; none where there is no such file."""
    newest: dict[str, Any] = {}
    for path in sorted(benchmarks.glob(f"nvidia-*/{GROWTH_FILES}")):
        table = json.loads(path.read_text())
        if table["environment"]["date"] > newest.get("environment", {}).get("date", ""):
            newest = table
    added = {
        timing["case"]["experts"]: timing["ratio_to_base"] - 1
        for timing in newest.get("timings", ())
        if timing["case"]["network"] == "fused" and timing["case"]["task"] == "train"
    }
    if added.get(PLANNED_EXPERTS, 0.0) <= 0:
        return {}
    return {count: added[count] / added[PLANNED_EXPERTS] for count in sorted(added)}


def left_of(
    experiments: Iterable[Experiment],
    seeds: int,
    filed: Filed,
    growth: Growth,
    at_once: int = 1,
) -> Left:
    """What missing runs cost. A stage that they share counts once, even if a finished run has trained it already.

    Side by side, up to `at_once` of them, only networks that were timed in this way have an estimate.
    """
    jobs = [Job(experiment, seed) for experiment in experiments for seed in range(seeds)]
    paid: set[str] = set()
    known: list[float] = []
    unknown = False
    for job in jobs:
        if job.done(filed):
            continue
        seconds = seconds_of_job(job, paid, growth)
        paid |= job.keys()
        if math.isfinite(seconds) and (at_once == 1 or job.leaves_room):
            known.append(seconds)
        else:
            unknown = True
    count = max(1, min(at_once, len(known)))
    return Left(sum(known) / count * beside_others(count), unknown)


def seconds_of_job(job: Job, paid: set[str], growth: Growth) -> float:
    """What training costs, by the number of experts where their branches have the width that was measured."""
    seconds = job.seconds_of_training(paid)
    config = job.config
    keys = {} if job.experiment.hdcnn else stage_keys(config)
    if "experts" not in keys or keys["experts"] in paid or config.adapt.branch_width != 1 or not growth:
        return seconds
    epochs = epochs_of(config)["experts"]
    trunk = seconds_of(config, "generalist", epochs)  # so long the base would take
    if not math.isfinite(trunk):
        return seconds
    branches = seconds_of(config, "experts", epochs) - trunk
    return seconds + branches * (grown(growth, config.specialties.count) - 1)


def grown(growth: Growth, count: int) -> float:
    """Between two measured numbers of experts, and beyond them, in a straight line."""
    counts = list(growth)
    if len(counts) < 2:
        return growth.get(count, 1.0)
    above = next((place for place, known in enumerate(counts) if known >= count), len(counts) - 1)
    low, high = counts[max(above, 1) - 1], counts[max(above, 1)]
    return growth[low] + (growth[high] - growth[low]) * (count - low) / (high - low)
