"""What was aimed at in speed, beside what was measured: the first table of the page of speed."""

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nofe.report.text import markdown_table
from nofe.suggestions import all_of

GPU, CPU = "nvidia-h200", "amd-epyc-2-cores"
SHARE = 25  # per cent of the GPU that each of 8 runs may use
STEPS_AN_EPOCH = 50_000 // 128
FASTEST = "compiled+captured"
AIMED_AT = "What this project set out to reach, and what was measured."
SIX = ("alexnet-c100", "alexnet-quick-c100", "vgg11-c100", "nin-c100", "resnet56-c100", "alexnet-caffe")


@dataclass(frozen=True)
class Mark:
    what: str
    aim: str
    measured: str
    files: tuple[Path, ...]


class _NotThereError(Exception):
    """A file measured something else than the table wants."""


class _Timings:
    """One file of `nofe bench`."""

    def __init__(self, path: Path) -> None:
        self._rows = json.loads(path.read_text())["timings"]

    def ms(self, network: str, mode: str, task: str, *, batch: int | None = None, experts: int = 10) -> float:
        return float(self.row(network, mode, task, batch=batch, experts=experts)["milliseconds"])

    def row(self, network: str, mode: str, task: str, *, batch: int | None = None, experts: int = 10) -> dict[str, Any]:
        wanted = {"network": network, "mode": mode, "task": task, "experts": 0 if network == "base" else experts}
        if batch is not None:
            wanted["batch"] = batch
        found: list[dict[str, Any]] = [row for row in self._rows if wanted.items() <= row["case"].items()]
        if len(found) != 1:
            raise _NotThereError
        return found[0]


def marks(folder: Path) -> Iterator[Mark]:
    """In the order of what users ask first; those that have not been measured are left out."""
    for what, aim, files, measure in _MARKS:
        paths = tuple(folder / file for file in files)
        with suppress(_NotThereError):
            if all(path.exists() for path in paths):
                yield Mark(what, aim, measure(*paths), paths)


def link_to(file: Path) -> str:
    """In a page of docs/."""
    return f"[{file.stem}](../benchmarks/results/{file.parent.name}/{file.name})"


def marks_in_words(folder: Path) -> str:
    """A table in Markdown; nothing where nothing has been measured."""
    rows = [(mark.what, mark.aim, mark.measured, ", ".join(map(link_to, mark.files))) for mark in marks(folder)]
    return f"{AIMED_AT}\n\n{markdown_table(('what', 'aim', 'measured', 'files'), rows)}\n" if rows else ""


def _beside_the_base(*paths: Path) -> str:
    return all_of(
        f"{t.ms('fused', FASTEST, 'train') / t.ms('base', FASTEST, 'train'):.3f}" for t in map(_Timings, paths)
    )


def _beside_the_loop(*paths: Path) -> str:
    return all_of(
        f"{t.ms('loop', 'eager', 'train') / t.ms('fused', FASTEST, 'train'):.1f}" for t in map(_Timings, paths)
    )


def _epochs(network: str) -> Callable[..., str]:
    def seconds(*paths: Path) -> str:
        each = (_Timings(path).ms(network, FASTEST, "train") * STEPS_AN_EPOCH / 1000 for path in paths)
        return all_of(f"{took:.2f} s" for took in each)

    return seconds


def _whole_job(path: Path) -> str:
    """The newest, and all of them by rule: none is picked by its accuracy."""
    jobs = json.loads(path.read_text())["jobs"]
    newest = jobs[-1]
    inside = sum(newest["parts"].values())
    said = [
        f"{newest['seconds']:.1f} s with {newest['accuracy']:.2%} by {newest['rule']} specialties, the newest "
        f"({inside:.1f} s once Python has started)"
    ]
    for rule in dict.fromkeys(job["rule"] for job in jobs):
        of_rule = [job for job in jobs if job["rule"] == rule]
        seconds, accuracies = ([job[field] for job in of_rule] for field in ("seconds", "accuracy"))
        said.append(
            f"{rule}, {len(of_rule)} jobs: {min(seconds):.1f} to {max(seconds):.1f} s with {min(accuracies):.2%} to "
            f"{max(accuracies):.2%}, on average {statistics.mean(accuracies):.2%}"
        )
    return "; ".join(said)


def _runs_at_once(*paths: Path) -> str:
    said = []
    for path in paths:
        measured = json.loads(path.read_text())
        rows = [row for row in measured["runs"] if (row["at_once"], row["share_of_each"]) == (8, SHARE)]
        found = {row["case"]["network"]: row["seconds_an_epoch"] for row in rows}
        if found.keys() != {"base", "fused"}:
            raise _NotThereError
        precision = measured["environment"]["precision"]
        said.append(f"base {found['base']:.3f} s, experts {found['fused']:.3f} s in {precision}")
    return "; ".join(said)


def _inference(mode: str) -> Callable[..., str]:
    def ratios(path: Path) -> str:
        timed = _Timings(path)
        of_batch = {
            batch: timed.ms("fused", mode, "inference", batch=batch) / timed.ms("base", mode, "inference", batch=batch)
            for batch in (1, 256)
        }
        return ", ".join(f"{ratio:.2f} at batch {batch}" for batch, ratio in of_batch.items())

    return ratios


def _fifty_experts(path: Path) -> str:
    timed = _Timings(path)
    return f"{timed.ms('fused', 'captured', 'train', experts=50) / timed.ms('fused', 'captured', 'train'):.2f}"


def _update(path: Path) -> str:
    rules: dict[str, Any] = json.loads(path.read_text())["rules"]
    return ", ".join(f"{of['share_of_epoch']:.1%} {rule}" for rule, of in rules.items())


def _never_slower(*paths: Path) -> str:
    """Where branches ran in the place of fused experts, the loop was timed against itself."""
    ratios: dict[str, float] = {}
    as_branches: list[str] = []
    for path in paths:
        timed = _Timings(path)
        for task in ("train", "forward"):
            name, ratio = f"{path.stem}'s {task}", timed.ms("fused", "eager", task) / timed.ms("loop", "eager", task)
            if timed.row("fused", "eager", task).get("by_branches", False):
                as_branches.append(name)
            else:
                ratios[name] = ratio
    if not ratios:
        raise _NotThereError
    slowest = max(ratios, key=ratios.__getitem__)
    said = f"{min(ratios.values()):.3f} to {ratios[slowest]:.3f} ({slowest})"
    return f"{said}; the loop itself, as fused were not faster: {all_of(as_branches)}" if as_branches else said


def _demo(path: Path) -> str:
    """Of whole processes, which took turns, and of the epochs of each stage: medians, as the machine varies."""
    measured = json.loads(path.read_text())
    before, after = (statistics.median(measured["whole"][when]) for when in ("before", "after"))

    def an_epoch(when: str, stage: str) -> float:
        return float(statistics.median(seconds for turn in measured["seconds"][when] for seconds in turn[stage]))

    stages = measured["seconds"]["after"][0]
    epochs = (f"{stage} {an_epoch('after', stage) / an_epoch('before', stage):.2f}" for stage in stages)
    turns = len(measured["whole"]["after"])
    said = f"{after / before:.2f}, {after:.0f} s where it was {before:.0f} s, medians of {turns} turns"
    return f"{said}; of its epochs {', '.join(epochs)}"


def _from_shards(*paths: Path) -> str:
    read = [json.loads(path.read_text()) for path in paths]
    return "; ".join(f"{of['images_per_second']['train']:,.0f} images/s {of['mode']}" for of in read)


_WITH_LOOP = (f"{GPU}/resnet56-c100-train.json", f"{GPU}/resnet56-c100-train-again.json")
_TRAINED = (*_WITH_LOOP, f"{GPU}/resnet56-c100-train-third.json")  # three machines
_AT_ONCE = (f"{GPU}/alexnet-c100-runs-at-once.json", f"{GPU}/alexnet-c100-runs-at-once-bf16.json")
_SHARDS = (f"{GPU}/data-shards-compiled.json", f"{GPU}/data-shards.json")
# What, aim, files, and what to read in them.
_MARKS: tuple[tuple[str, str, tuple[str, ...], Callable[..., str]], ...] = (
    (
        "ResNet56-C100, K=10, batch 128, bf16: a training step of the experts, in times of the base's",
        "at most 1.15",
        _TRAINED,
        _beside_the_base,
    ),
    (
        "ResNet56-C100: that step, as many times faster than branches in a loop, neither compiled nor captured",
        "at least 3.5",
        _WITH_LOOP,
        _beside_the_loop,
    ),
    ("ResNet56-C100: an epoch of the base, 390 such steps", "at most 2.4 s", _TRAINED, _epochs("base")),
    ("ResNet56-C100: an epoch of the experts", "at most 2.8 s", _TRAINED, _epochs("fused")),
    (
        "ResNet56-C100: a whole `nofe train`, 12 epochs of the generalist and 60 of the experts, from nothing",
        "at most 240 s, and 78.3%",
        (f"{GPU}/resnet56-c100-whole-job.json",),
        _whole_job,
    ),
    (
        "AlexNet-C100, 8 trainings at once: seconds until each has had an epoch, divided by 8",
        "at most 0.12 s",
        _AT_ONCE,
        _runs_at_once,
    ),
    (
        "ResNet56-C100, K=10: inference of the experts, in times of the base's, on the GPU, compiled",
        "at most 1.25",
        (f"{GPU}/resnet56-c100-inference.json",),
        _inference(FASTEST),
    ),
    (
        "ResNet56-C100, K=10: the same on two cores, not compiled",
        "at most 1.25",
        (f"{CPU}/resnet56-c100-inference.json",),
        _inference("eager"),
    ),
    (
        "six architectures on two cores: fused experts, in times of branches in a loop",
        "at most 1",
        tuple(f"{CPU}/{name}.json" for name in SIX),
        _never_slower,
    ),
    (
        "the demo, a plain `nofe train`, on two cores: from its start to its end, in times of the first version's",
        "less than 1",
        (f"{CPU}/demo.json",),
        _demo,
    ),
    (
        "ResNet56-C100: a training step with K=50, in times of one with K=10, not compiled",
        "less than 2",
        (f"{GPU}/resnet56-c100-train-as-experts-grow.json",),
        _fifty_experts,
    ),
    (
        "ResNet56-C100 with C=1,000: an update of the specialties, confusion included, beside an epoch",
        "less than 5%",
        (f"{GPU}/resnet56-c100-update.json",),
        _update,
    ),
    (
        "AlexNet-Caffe, K=10, bf16: training on packed shards of photo-like JPEGs, 16 cores",
        "at least 10,000 images/s",
        _SHARDS,
        _from_shards,
    ),
)
