"""The same training with several seeds, numbers of experts and rules, side by side on one device."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from nofe import runs
from nofe.checks import differences_from_run, require_fitting, require_outside_images, require_same_config
from nofe.config import RunConfig, as_setting, with_settings
from nofe.data import is_listed
from nofe.errors import UserError
from nofe.report.text import specialties_that_stayed, table
from nofe.reuse import stage_keys, trained_so_far
from nofe.run_images import held_out, read_dataset
from nofe.runs import Run
from nofe.side_by_side import Outcome, run_side_by_side
from nofe.specialties import rule_named
from nofe.suggestions import counted
from nofe.training.ranks import Ranks

GAIN = "gain"  # in points


@dataclass(frozen=True)
class Training:
    name: str
    config: RunConfig

    def keys(self) -> set[str]:
        return set(stage_keys(self.config).values())

    def seconds(self, trained: object) -> float:
        return 0.0  # nobody knows

    @property
    def leaves_room(self) -> bool:
        return True


@dataclass(frozen=True)
class TrainingOptions:
    """How every one of them runs."""

    device: str = "auto"
    compile: bool | None = None
    kernels: str = "known"  # measuring would be disturbed by the others


def trainings(
    config: RunConfig, seeds: Sequence[int], experts: Sequence[int] = (), rules: Sequence[str] = ()
) -> list[Training]:
    """One for each combination; what is not given is as in `config`."""
    found = []
    counts, named = experts or [config.specialties.count], rules or [config.specialties.rule]
    for count, rule, seed in product(counts, named, seeds):
        values = {"specialties.count": count, "specialties.rule": rule, "seed": seed}
        settings = [as_setting(name, value) for name, value in values.items()]
        found.append(Training(f"{rule}-k{count}-seed{seed}", with_settings(config, settings)))
    if len({each.name for each in found}) < len(found):
        raise UserError("sweep: a seed, a number of experts or a rule is given twice; give each once")
    return found


def sweep(
    jobs: Sequence[Training],
    folder: Path,
    options: TrainingOptions,
    *,
    at_once: int,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Train them in folders of their own in `folder`; what is there already is gone on with, or left as it is."""
    if (folder / runs.CONFIG).exists():
        raise UserError(f"{folder}: is the folder of one run and cannot hold others; name another with --out")
    for job in jobs:
        require_outside_images(job.config, folder / job.name)
    require_fitting_jobs(jobs, folder)
    work = partial(_train, folder=folder, options=options)

    def trained_by(job: Training) -> set[str]:
        return trained_so_far(Run(folder / job.name), job.config)

    return run_side_by_side(jobs, work, at_once=at_once, minutes=minutes, trained_by=trained_by, say=say)


def require_fitting_jobs(jobs: Sequence[Training], folder: Path) -> None:
    """What every run would find out for itself, once and before any is begun. No image of a folder is decoded."""
    from nofe.architectures.zoo import trust

    to_train: dict[RunConfig, Run] = {}
    for job in jobs:
        run = Run(folder / job.name)
        if run.file(runs.CONFIG).exists():
            require_same_config(job.config, run)
        if not run.has(runs.SUMMARY):
            to_train.setdefault(replace(job.config, seed=0), run)  # seeds fit alike
    if not to_train:
        return
    config = next(iter(to_train))  # all have the same data
    trust(config.architecture)
    stream = True if is_listed(config.data.name) else config.data.stream
    listed = read_dataset(replace(config, data=replace(config.data, stream=stream)))
    dataset = held_out(config, listed)
    for config, run in to_train.items():
        require_fitting(config, dataset, run, Ranks())


def _train(job: Training, folder: Path, options: TrainingOptions) -> None:
    from nofe.architectures.zoo import trust
    from nofe.pipeline import train
    from nofe.training.runtime import make_runtime

    trust(job.config.architecture)
    runtime = make_runtime(options.device, compile=options.compile, kernels=options.kernels, checkpoint_seconds=None)
    out = folder / job.name
    # A base, or a generalist, that another has trained alike is not trained again.
    others = sorted(path for path in folder.glob("*") if path != out and path.is_dir())
    train(job.config, out, resume=True, runtime=runtime, donors=others)


def sweep_in_words(jobs: Sequence[Training], folder: Path) -> str:
    """Mean and deviation over the seeds that are done, of each network, by rule and number of experts.

    The gain is that of each seed over its own base. A folder may hold the run of other settings, which is not counted.
    """
    by_setting: dict[tuple[str, int], list[Run]] = {}
    for job in jobs:
        run = Run(folder / job.name)
        done = by_setting.setdefault((job.config.specialties.rule, job.config.specialties.count), [])
        if run.has(runs.SUMMARY) and not differences_from_run(job.config, run):
            done.append(run)
    figures = {setting: [_figures(run) for run in done] for setting, done in by_setting.items()}
    names = dict.fromkeys(name for of_setting in figures.values() for of_run in of_setting for name in of_run)
    columns = sorted(names, key=lambda name: name == GAIN)  # last; the others as they are
    rows = []
    for (rule, count), of_setting in figures.items():
        found = ([of_run[name] for of_run in of_setting if name in of_run] for name in columns)
        rows.append((rule, f"{count}", f"{len(of_setting)}", *map(_mean, found)))
    notes = [_that_stayed(rule, count, done) for (rule, count), done in by_setting.items()]
    return "\n".join([table(("rule", "K", "runs", *columns), rows), *filter(None, notes)])


def _figures(run: Run) -> dict[str, float]:
    """The accuracy of each network, and what the experts gain over the base by the same recipe and seed."""
    networks: Mapping[str, Mapping[str, float]] = run.read_json(runs.SUMMARY)["networks"]
    found = {name: figures["accuracy"] for name, figures in networks.items()}
    return found | ({GAIN: found["experts"] - found["base"]} if found.keys() >= {"base", "experts"} else {})


def _that_stayed(rule: str, count: int, done: Sequence[Run]) -> str:
    """A rule that learned nothing is not to be compared with others as if it had."""
    if not rule_named(rule).updates:
        return ""
    updates = ([line for line in run.metrics() if "update" in line] for run in done)
    stayed = [said for each in updates if (said := specialties_that_stayed(each))]
    return f"{rule}, K={count}: {len(stayed)} of {counted(len(done), 'run')}: {stayed[0]}" if stayed else ""


def _mean(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    spread = f" ± {100 * statistics.stdev(shares):.2f}" if len(shares) > 1 else ""
    return f"{100 * statistics.mean(shares):.2f}{spread}"
