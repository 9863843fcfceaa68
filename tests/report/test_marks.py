"""The first table of the page of speed, on files whose figures are known."""

import json
from pathlib import Path
from typing import Any

from nofe.report.marks import CPU, GPU, marks, marks_in_words


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def timing(network: str, mode: str, task: str, ms: float, *, batch: int = 128, experts: int = 10) -> dict[str, Any]:
    experts = 0 if network == "base" else experts
    return {
        "case": {"network": network, "mode": mode, "task": task, "batch": batch, "experts": experts, "classes": 100},
        "milliseconds": ms,
    }


def measured(folder: Path) -> dict[str, str]:
    return {mark.what: mark.measured for mark in marks(folder)}


def test_what_has_no_file_is_left_out(tmp_path: Path) -> None:
    assert measured(tmp_path) == {}
    assert marks_in_words(tmp_path) == ""
    write(tmp_path / GPU / "resnet56-c100-train.json", {"timings": []})
    assert measured(tmp_path) == {}, "of two machines, one alone says nothing"


def test_steps_and_epochs_of_two_machines(tmp_path: Path) -> None:
    for name, base, fused in (("resnet56-c100-train", 6.0, 6.9), ("resnet56-c100-train-again", 6.2, 7.2)):
        rows = [
            timing("base", "eager", "train", 99.0),
            timing("loop", "eager", "train", 10 * fused),
            timing("base", "compiled+captured", "train", base),
            timing("fused", "compiled+captured", "train", fused),
        ]
        write(tmp_path / GPU / f"{name}.json", {"timings": rows})
    ratio, loop, base_epoch, experts_epoch = measured(tmp_path).values()
    assert ratio == "1.150 and 1.161"
    assert loop == "10.0 and 10.0"
    assert base_epoch == "2.34 s and 2.42 s"  # 390 steps
    assert experts_epoch == "2.69 s and 2.81 s"
    assert "| at most 1.15 | 1.150 and 1.161 | [resnet56-c100-train](../benchmarks/" in marks_in_words(tmp_path)


def test_of_whole_jobs_the_quickest_and_the_quickest_that_is_good_enough(tmp_path: Path) -> None:
    path = tmp_path / GPU / "resnet56-c100-whole-job.json"
    jobs = [{"seconds": 250.0, "accuracy": 0.786}, {"seconds": 239.2, "accuracy": 0.781}]
    write(path, {"jobs": [*jobs, {"seconds": 245.0, "accuracy": 0.784}]})
    assert list(measured(tmp_path).values()) == ["239.2 s with 78.10%; 245.0 s with 78.40%"]
    write(path, {"jobs": [*jobs, {"seconds": 235.0, "accuracy": 0.783}]})
    assert list(measured(tmp_path).values()) == ["235.0 s with 78.30%"]


def test_the_architecture_where_fusing_pays_least_is_named(tmp_path: Path) -> None:
    for name in ("alexnet-c100", "alexnet-quick-c100", "vgg11-c100", "nin-c100", "resnet56-c100", "alexnet-caffe"):
        fused = 10.2 if name == "nin-c100" else 8.0
        rows = [timing("loop", "eager", task, 10.0) for task in ("train", "forward")]
        rows += [timing("fused", "eager", "train", fused), timing("fused", "eager", "forward", 9.0)]
        write(tmp_path / CPU / f"{name}.json", {"timings": rows})
    assert list(measured(tmp_path).values()) == ["0.80 to 1.02 (nin-c100's train)"]
