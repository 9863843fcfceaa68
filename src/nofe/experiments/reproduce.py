"""Train what is missing of the paper's tables, several runs side by side on one device.

A run's result is one file in `results/`, written when it is complete; an interrupted one goes on from its checkpoint.
"""

import math
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nofe import config as configuration
from nofe import runs
from nofe.config import RunConfig
from nofe.errors import UserError
from nofe.experiments.keys import keys_of, keys_of_experiment
from nofe.experiments.results import add_to_result, file_hdcnn, file_result, results_in
from nofe.experiments.tables import Experiment, experiments_by_name
from nofe.reuse import stage_keys
from nofe.runs import Run
from nofe.side_by_side import Outcome, run_side_by_side
from nofe.stages import recipe_of_stage

# Seconds an epoch of 50,000 images, base and experts with K=10, of a run alone on an H200, to plan by: steps of
# benchmarks/results/nvidia-h200/steps-by-network.json, compiled and captured, and a tenth of a second to test. That of
# AlexNet-Quick-C100 is taken for AlexNet-C100's.
SECONDS_AN_EPOCH = {
    "alexnet-c100": (0.30, 0.35),
    "alexnet-quick-c100": (0.30, 0.35),
    "vgg11-c100": (0.43, 0.59),  # this and the next in bf16: vgg11-c100-train.json, nin-c100-train.json
    "nin-c100": (0.48, 0.65),
    "resnet56-c100": (2.55, 2.95),
    "resnet18-cifar": (1.0, 1.3),  # that of the experts, here and below, by their multiplications
    "wrn-28-10": (4.35, 5.4),
}
HDCNN_SECONDS = 300.0  # without its base: 66 epochs of NIN-C100, 180 of a tenth, 40 of all components, an estimate
SECONDS_WORTH_MEASURING = 100.0  # of a run: finding out which kernels suit its experts takes some seconds
SECONDS_TO_MEASURE = 120.0  # at most
SECONDS_TO_TIME = 300.0  # the inference of finished runs, at most
TIMED = "inference"  # the measure that is a time: of runs that are done, with the device for itself


@dataclass(frozen=True)
class Job:
    """One run: an experiment with a seed."""

    experiment: Experiment
    seed: int

    @property
    def name(self) -> str:
        return f"{self.experiment.name}-seed{self.seed}"

    @property
    def config(self) -> RunConfig:
        return self.experiment.seeded(self.seed)

    def keys(self) -> set[str]:
        """Of all that it trains: an HD-CNN, the base that it begins with, too."""
        keys = set(keys_of_experiment(self.experiment, self.seed).values())
        return keys | set(stage_keys(self.config).values()) if self.experiment.hdcnn else keys

    def made(self, result: Mapping[str, Any]) -> bool:
        """Whether it is of this run, by today's recipe."""
        of_this = (result.get("experiment"), result["config"]["seed"]) == (self.experiment.name, self.seed)
        return of_this and keys_of(result) == keys_of_experiment(self.experiment, self.seed)

    def done(self, there: Set[str], results: Sequence[Mapping[str, Any]]) -> bool:
        """Every stage has a figure in some file; what else is measured must be in a file of this very experiment."""
        own = [each for each in results if self.made(each)]
        measured = all(any(measure in result for result in own) for measure in self.experiment.measures)
        return measured and self.keys() <= there

    def seconds(self, trained: Iterable[str] = ()) -> float:
        """What is left of it is likely to take, alone on an H200, when the stages of these keys are there."""
        trained = set(trained)
        epochs, keys = epochs_of(self.config), stage_keys(self.config)
        of_run = sum(seconds_of(self.config, stage, epochs[stage]) for stage in epochs if keys[stage] not in trained)
        return of_run + (HDCNN_SECONDS if self.experiment.hdcnn and not self.keys() <= trained else 0.0)


@dataclass(frozen=True)
class Workshop:
    """Where and how runs are made; what every worker process needs."""

    runs: Path
    results: Path
    data_root: Path
    device: str = "auto"
    compile: bool | None = None


def epochs_of(config: RunConfig) -> dict[str, int]:
    return {stage: recipe.epochs for stage, recipe in recipe_of_stage(config).items()}


def seconds_of(config: RunConfig, stage: str, epochs: int) -> float:
    name = next((name for name in SECONDS_AN_EPOCH if config.architecture.startswith(name)), None)
    if name is None:
        return math.inf  # nobody has measured it
    base, experts = SECONDS_AN_EPOCH[name]
    larger = config.architecture != name  # a base of the experts' size
    return epochs * (experts if larger or stage == "experts" else base)


def keys_with_results(results: Sequence[Mapping[str, Any]]) -> set[str]:
    """The stages that some result file has a figure of."""
    found: set[str] = set()
    for result in results:
        keys = keys_of(result)
        found |= {key for stage, key in keys.items() if stage in result["networks"]}
    return found


def missing(experiments: Iterable[Experiment], seeds: int, results: Sequence[Mapping[str, Any]]) -> list[Job]:
    """Runs with a stage that no result file has, cheapest first."""
    there = keys_with_results(results)
    jobs = [Job(experiment, seed) for experiment in experiments for seed in range(seeds)]
    return sorted((job for job in jobs if not job.done(there, results)), key=lambda job: job.seconds())


def reproduce(
    jobs: Sequence[Job],
    workshop: Workshop,
    *,
    side_by_side: int,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Run the jobs, `side_by_side` at a time, and file each result."""
    require_images(jobs)
    _choose_kernels(jobs, workshop)
    work = partial(run_job, workshop=workshop)
    outcome = run_side_by_side(jobs, work, at_once=side_by_side, minutes=minutes, say=say)
    unfinished = {*outcome.failed, *outcome.stopped, *outcome.not_begun}
    finished = [job for job in jobs if TIMED in job.experiment.measures and job.name not in unfinished]
    if finished and not _apart(SECONDS_TO_TIME, time_inference, finished, workshop):
        say(f"{finished[0].name}: its inference could not be timed; run the command again to try")
    return outcome


def require_images(jobs: Sequence[Job]) -> None:
    """That folders and shards are there, before processes are started for each to find that they are not."""
    for name in {job.config.data.name for job in jobs if _is_on_disk(job.config)}:
        path = name.partition(":")[2]
        if not Path(path).expanduser().exists():
            wanted_by = sum(job.config.data.name == name for job in jobs)
            raise UserError(
                f"{path}: no such folder, and {wanted_by} runs want it; say where ImageNet lies with --dataset "
                "folder:PATH or --dataset shards:PATH"
            )


def _apart(seconds: float, function: Callable[..., None], *arguments: Any) -> bool:
    """In a process of its own, which leaves the device to others when it ends; it has so long. Whether it did well."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments, daemon=True)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == 0


def _choose_kernels(jobs: Sequence[Job], workshop: Workshop) -> None:
    """By measuring, before the runs are there to disturb it; runs do without what is not known."""
    long_ones = {}
    for job in jobs:
        config = job.config
        has_experts = config.until == "experts" and not job.experiment.hdcnn
        if has_experts and SECONDS_WORTH_MEASURING <= job.seconds() < math.inf:
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

    import torch

    from nofe.experiments.hdcnn import HDCNNConfig, train_hdcnn
    from nofe.experiments.measures import MEASURES
    from nofe.pipeline import train
    from nofe.training.runtime import make_runtime

    # Kernels are not measured here: the other runs would disturb it.
    runtime = make_runtime(workshop.device, compile=workshop.compile, kernels="known", checkpoint_seconds=60)
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
    from nofe.architectures import architecture_named
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
