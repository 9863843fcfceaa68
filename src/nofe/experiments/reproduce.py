"""Train what is missing of the paper's tables, several runs side by side on one device.

A run's result is one file in `results/`, written when it is complete; an interrupted one goes on from its checkpoint.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from nofe import config as configuration
from nofe import runs
from nofe.architectures import architecture_named
from nofe.config import RunConfig
from nofe.errors import NofeError, UserError
from nofe.experiments.estimates import (
    SECONDS_TO_BEGIN,
    TIMED_BESIDE_OTHERS,
    epochs_of,
    seconds_of,
    seconds_of_hdcnn,
)
from nofe.experiments.keys import keys_of, keys_of_experiment
from nofe.experiments.results import add_to_result, file_hdcnn, file_result, results_in
from nofe.experiments.table import Experiment
from nofe.experiments.tables import experiments_by_name
from nofe.files import expand_home
from nofe.reuse import stage_keys, trained_so_far
from nofe.runs import Run
from nofe.side_by_side import SECONDS_TO_STOP, Outcome, end_with_the_parent, run_side_by_side

SECONDS_WORTH_MEASURING = 100.0  # of a run: finding out which kernels suit its experts takes some seconds
SECONDS_TO_MEASURE = 120.0  # at most
SECONDS_TO_TIME = 300.0  # the inference of finished runs, at most; where time is short, what runs have to stop in
TIMED = "inference"  # the measure that is a time: of runs that are done, with the device for itself


@dataclass(frozen=True)
class Filed:
    """Result files, and what they have figures of."""

    results: Sequence[Mapping[str, Any]]

    @cached_property
    def stages(self) -> Set[str]:
        """Their keys."""
        named = ((result, keys_of(result)) for result in self.results)
        return {key for result, keys in named for stage, key in keys.items() if stage in result["networks"]}


@dataclass(frozen=True)
class Job:
    """One run: an experiment with a seed."""

    experiment: Experiment
    seed: int
    behind: Mapping[str, int] = field(default_factory=dict, compare=False)  # epochs of each stage, before it goes on

    @property
    def name(self) -> str:
        return f"{self.experiment.name}-seed{self.seed}"

    @property
    def config(self) -> RunConfig:
        return self.experiment.seeded(self.seed)

    @property
    def leaves_room(self) -> bool:
        return self.config.architecture.startswith(TIMED_BESIDE_OTHERS)

    def folders(self, runs_of: Path) -> list[Run]:
        """Its run's, and of an HD-CNN that of the base that it begins with."""
        base = [Job(base_of_hdcnn(self.experiment), self.seed)] if self.experiment.hdcnn else []
        return [Run(runs_of / job.name) for job in (*base, self)]

    def keys(self) -> set[str]:
        """Of all that it trains: an HD-CNN, the base that it begins with, too."""
        keys = set(keys_of_experiment(self.experiment, self.seed).values())
        return keys | set(stage_keys(self.config).values()) if self.experiment.hdcnn else keys

    def made(self, result: Mapping[str, Any]) -> bool:
        """Whether it is of this run, by today's recipe."""
        of_this = (result.get("experiment"), result["config"]["seed"]) == (self.experiment.name, self.seed)
        return of_this and keys_of(result) == keys_of_experiment(self.experiment, self.seed)

    def done(self, filed: Filed) -> bool:
        """Every stage has a figure in some file; what else is measured must be in a file of this very experiment."""
        own = [each for each in filed.results if self.made(each)]
        measured = all(any(measure in result for result in own) for measure in self.experiment.measures)
        return measured and self.keys() <= filed.stages

    def seconds(self, trained: Iterable[str] = ()) -> float:
        """What is left of it is likely to take, alone on an H200, when the stages of these keys are there."""
        return SECONDS_TO_BEGIN + self.seconds_of_training(trained)

    def seconds_of_training(self, trained: Iterable[str] = ()) -> float:
        """Its epochs, without what it takes to begin."""
        trained = set(trained)
        epochs, keys = epochs_of(self.config), stage_keys(self.config)
        of_run = sum(
            seconds_of(self.config, stage, epochs[stage] - self.behind.get(stage, 0))
            for stage in epochs
            if keys[stage] not in trained
        )
        is_left = self.experiment.hdcnn and not self.keys() <= trained
        return of_run + (seconds_of_hdcnn(self.behind) if is_left else 0.0)


@dataclass(frozen=True)
class Workshop:
    """Where and how runs are made; what every worker process needs."""

    runs: Path
    results: Path
    data_root: Path
    device: str = "auto"
    compile: bool | None = None
    kernels: str = "known"  # of the experts: where others would disturb it, they are measured before


def with_progress(jobs: Iterable[Job], runs_of: Path) -> list[Job]:
    """The jobs, knowing how many epochs folders have of each stage; that of an HD-CNN's base is another."""
    return [
        replace(job, behind={stage: epoch for run in job.folders(runs_of) for stage, epoch in _epochs_in(run).items()})
        for job in jobs
    ]


def before_it_is_gone(jobs: Iterable[Job]) -> list[Job]:
    """What was begun first, as it would be lost, and of that what ends soonest; then as given."""
    return sorted(jobs, key=lambda job: (not job.behind, job.seconds() if job.behind else 0.0))


def trained_in(runs_of: Path) -> set[str]:
    """The keys of the stages that folders of runs have to the last epoch: other runs take them from there."""
    found: set[str] = set()
    for folder in sorted(runs_of.glob("*")):
        try:
            config = configuration.from_json(Run(folder).read_config())
        except NofeError:
            continue  # an HD-CNN, or of another version
        epochs, keys = epochs_of(config), stage_keys(config)
        behind = _epochs_in(Run(folder))
        found |= {keys[stage] for stage in epochs if behind.get(stage, 0) >= epochs[stage]}
    return found


def _trained_by(job: Job, runs_of: Path) -> set[str]:
    return set().union(*(trained_so_far(run, job.config) for run in job.folders(runs_of)))


def _epochs_in(run: Run) -> dict[str, int]:
    epochs: dict[str, int] = {}
    for line in run.metrics():
        if "epoch" in line:
            epochs[line["stage"]] = max(epochs.get(line["stage"], 0), line["epoch"])
    return epochs


def missing(experiments: Iterable[Experiment], seeds: int, results: Sequence[Mapping[str, Any]]) -> list[Job]:
    """Runs with a stage that no result file has, cheapest first; at about the same price, as the tables have them."""
    filed = Filed(results)
    jobs = [Job(experiment, seed) for experiment in experiments for seed in range(seeds)]
    return sorted((job for job in jobs if not job.done(filed)), key=_minutes)


def _minutes(job: Job) -> float:
    """Whole ones."""
    seconds = job.seconds()
    return round(seconds / 60) if math.isfinite(seconds) else seconds


def reproduce(
    jobs: Sequence[Job],
    workshop: Workshop,
    *,
    side_by_side: int,
    minutes: float | None = None,
    gone_in: float | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Run the jobs, `side_by_side` at a time, and file each result. `gone_in`: as in run_side_by_side.

    They begin in the order given; where the machine will be gone, after those that were begun before.
    """
    began = time.monotonic()
    require_images(jobs)
    if side_by_side > 1:
        _choose_kernels(jobs, workshop)
    else:
        workshop = replace(workshop, kernels="measure")  # each run its own: nothing disturbs it
    spent = (time.monotonic() - began) / 60
    planned = with_progress(jobs, workshop.runs)
    outcome = run_side_by_side(
        planned if gone_in is None else before_it_is_gone(planned),
        partial(run_job, workshop=workshop),
        at_once=side_by_side,
        minutes=None if minutes is None else minutes - spent,
        gone_in=None if gone_in is None else gone_in - spent,
        trained=trained_in(workshop.runs),
        trained_by=partial(_trained_by, runs_of=workshop.runs),
        say=say,
    )
    unfinished = {*outcome.failed, *outcome.stopped, *outcome.not_begun}
    finished = [job for job in jobs if TIMED in job.experiment.measures and job.name not in unfinished]
    patience = SECONDS_TO_TIME if minutes is None and gone_in is None else SECONDS_TO_STOP
    if finished and not _apart(patience, time_inference, finished, workshop):
        say(f"{finished[0].name}: its inference could not be timed; run the command again to try")
    return outcome


def require_images(jobs: Sequence[Job]) -> None:
    """That folders and shards are there, before processes are started for each to find that they are not."""
    for name in {job.config.data.name for job in jobs if _is_on_disk(job.config)}:
        path = name.partition(":")[2]
        if not expand_home(path).exists():
            wanted_by = sum(job.config.data.name == name for job in jobs)
            raise UserError(
                f"{path}: no such folder, and {wanted_by} runs want it; say where ImageNet lies with --dataset "
                "folder:PATH or --dataset shards:PATH"
            )


def _apart(seconds: float, function: Callable[..., None], *arguments: Any) -> bool:
    """In a process of its own, which leaves the device to others when it ends; it has so long. Whether it did well."""
    process = multiprocessing.get_context("spawn").Process(target=_as_a_child, args=(function, *arguments), daemon=True)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == 0


def _as_a_child(function: Callable[..., None], *arguments: Any) -> None:
    """It does not go on when the command is stopped."""
    end_with_the_parent()
    function(*arguments)


def _choose_kernels(jobs: Sequence[Job], workshop: Workshop) -> None:
    """By measuring, before the runs are there to disturb it; runs do without what is not known."""
    long_ones = {}
    for job in jobs:
        config = job.config
        has_experts = config.until == "experts" and not job.experiment.hdcnn
        if has_experts and SECONDS_WORTH_MEASURING <= job.seconds_of_training() < math.inf:
            long_ones[config.architecture, config.adapt, config.specialties.count, config.precision] = config
    if not long_ones or workshop.device == "cpu":
        return
    _apart(SECONDS_TO_MEASURE, _measure_kernels, list(long_ones.values()), workshop)


def _measure_kernels(configs: Sequence[RunConfig], workshop: Workshop) -> None:
    from nofe.ahead import with_kernels_chosen
    from nofe.run_images import read_dataset
    from nofe.training.runtime import make_runtime

    for config in configs:
        runtime = make_runtime(workshop.device, kernels="measure")
        if runtime.device.type != "cuda":
            return
        runtime.use_precision(config.precision)
        dataset = _dataset(_at(config, workshop)) or read_dataset(_at(config, workshop), runtime)
        with_kernels_chosen(config, dataset.classes, len(dataset.train.labels), runtime)


def _at(config: RunConfig, workshop: Workshop) -> RunConfig:
    return configuration.with_settings(config, [configuration.as_setting("data.root", str(workshop.data_root))])


def run_job(job: Job, workshop: Workshop) -> Path:
    """Train the run, or what is missing of it, and file its result."""
    import gc

    from nofe.experiments.hdcnn import HDCNNConfig, train_hdcnn
    from nofe.experiments.measures import MEASURES
    from nofe.pipeline import train
    from nofe.training.runtime import make_runtime

    runtime = make_runtime(workshop.device, compile=workshop.compile, kernels=workshop.kernels, checkpoint_seconds=None)
    if runtime.compile is None:
        runtime.compile = runtime.device.type == "cuda"  # kept on disk, and shared by all runs of a network
    out = workshop.runs / job.name
    config = _at(job.config, workshop)
    name = job.experiment.name
    if job.experiment.hdcnn:
        base = Job(base_of_hdcnn(job.experiment), job.seed)
        run_job(base, workshop)  # a row of its own: nothing is trained where it is there
        runtime.use_precision(config.precision)
        summary = train_hdcnn(
            HDCNNConfig(),
            _dataset(config),
            out,
            seed=job.seed,
            resume=True,
            runtime=runtime,
            run_of_base=workshop.runs / base.name,
        )
        path = file_hdcnn(summary, Run(out), config, workshop.results, name)
    else:
        donors = sorted(path for path in workshop.runs.glob("*") if path != out and path.is_dir())
        train(config, out, resume=True, runtime=runtime, dataset=_dataset(config), donors=donors)
        more = {measure: MEASURES[measure](out, runtime) for measure in job.experiment.measures if measure != TIMED}
        path = file_result(Run(out), workshop.results, name, experiment=name, **more)
    torch._dynamo.reset()  # its caches hold the networks of this run
    gc.collect()
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()
    return path


def base_of_hdcnn(experiment: Experiment) -> Experiment:
    """The row that trains the base alone."""
    rows = experiments_by_name().values()
    return next(each for each in rows if each.config == experiment.config and not each.hdcnn)


def _is_finished(job: Job, workshop: Workshop) -> bool:
    return Run(workshop.runs / job.name).has(runs.SUMMARY)


def time_inference(jobs: Sequence[Job], workshop: Workshop) -> None:
    """Of all networks of a seed taking turns, and nothing else on the device; into the files of their results."""
    from nofe.experiments.measures import milliseconds_of, networks_to_time
    from nofe.training.runtime import device_name, make_runtime

    runtime = make_runtime(workshop.device, kernels="known")
    for seed in sorted({job.seed for job in jobs}):
        of_seed = [job for job in jobs if job.seed == seed]
        to_compare = (Job(each, seed) for each in experiments_by_name().values() if TIMED in each.measures)
        of_seed += [each for each in to_compare if each not in of_seed and _is_finished(each, workshop)]
        runtime.use_precision(of_seed[0].config.precision)
        networks, crop = networks_to_time([workshop.runs / job.name for job in of_seed])
        times = milliseconds_of(networks, crop, runtime)
        here = device_name(runtime.device)
        for result in results_in(workshop.results):
            if result["environment"]["device"] == here and any(job.made(result) for job in of_seed):
                add_to_result(workshop.results / result["file"], **{TIMED: times})


_DATASETS: dict[str, Any] = {}


def _dataset(config: RunConfig) -> Any:
    """Read once in each process. None for images on disk: the run reads them, which knows what is too much to keep."""
    from nofe.run_images import read_dataset

    if _is_on_disk(config):
        return None
    key = f"{config.data} at {architecture_named(config.architecture).image_size} pixels"
    if key not in _DATASETS:
        _DATASETS.clear()
        _DATASETS[key] = read_dataset(config)
    return _DATASETS[key]


def _is_on_disk(config: RunConfig) -> bool:
    return config.data.name.partition(":")[0] in ("folder", "shards")
