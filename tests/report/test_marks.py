"""The first table of the page of speed, on files whose figures are known."""

import json
from pathlib import Path
from typing import Any

from nofe.report.marks import _MARKS, CPU, GPU, marks, marks_in_words


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
    assert measured(tmp_path) == {}, "of three machines, one alone says nothing"


def test_steps_and_epochs_of_three_machines(tmp_path: Path) -> None:
    """The third has timed no loop."""
    machines = (("", 6.0, 6.9), ("-again", 6.2, 7.2), ("-third", 6.1, 7.0))
    for suffix, base, fused in machines:
        rows = [
            timing("base", "eager", "train", 99.0),
            timing("loop", "eager", "train", 10 * fused),
            timing("base", "compiled+captured", "train", base),
            timing("fused", "compiled+captured", "train", fused),
        ]
        timings = rows[2:] if suffix == "-third" else rows
        write(tmp_path / GPU / f"resnet56-c100-train{suffix}.json", {"timings": timings})
    ratio, loop, base_epoch, experts_epoch = measured(tmp_path).values()
    assert ratio == "1.150, 1.161 and 1.148"
    assert loop == "10.0 and 10.0"
    assert base_epoch == "2.34 s, 2.42 s and 2.38 s"  # 390 steps
    assert experts_epoch == "2.69 s, 2.81 s and 2.73 s"
    assert "| at most 1.15 | 1.150, 1.161 and 1.148 | [resnet56-c100-train](../benchmarks/" in marks_in_words(tmp_path)


def test_of_whole_jobs_the_newest_and_all_of_them_by_rule(tmp_path: Path) -> None:
    path = tmp_path / GPU / "resnet56-c100-whole-job.json"
    took = ((250.0, 0.786, "greedy"), (239.2, 0.781, "greedy"), (245.0, 0.784, "exact"))
    parts = {"generalist": 50.0, "experts": 180.0}
    jobs = [{"seconds": seconds, "parts": parts, "accuracy": top, "rule": rule} for seconds, top, rule in took]
    write(path, {"jobs": jobs})
    newest = "245.0 s with 78.40% by exact specialties, the newest (230.0 s once Python has started)"
    greedy = "greedy, 2 jobs: 239.2 to 250.0 s with 78.10% to 78.60%, on average 78.35%"
    exact = "exact, 1 jobs: 245.0 to 245.0 s with 78.40% to 78.40%, on average 78.40%"
    assert list(measured(tmp_path).values()) == [f"{newest}; {greedy}; {exact}"]


def test_runs_at_once_are_compared_at_one_share_of_the_gpu(tmp_path: Path) -> None:
    def run(network: str, at_once: int, share: int, seconds: float) -> dict[str, Any]:
        case = {"network": network}
        return {"case": case, "at_once": at_once, "share_of_each": share, "seconds_an_epoch": seconds}

    for name, precision in (("", "tf32"), ("-bf16", "bf16")):
        rows = [run("base", 1, 100, 0.3), run("base", 8, 25, 0.1), run("fused", 8, 25, 0.14), run("base", 8, 33, 0.2)]
        content = {"environment": {"precision": precision}, "runs": rows}
        write(tmp_path / GPU / f"alexnet-c100-runs-at-once{name}.json", content)
    told = "; ".join(f"base 0.100 s, experts 0.140 s in {precision}" for precision in ("tf32", "bf16"))
    assert list(measured(tmp_path).values()) == [told]
    write(tmp_path / GPU / "alexnet-c100-runs-at-once.json", {"environment": {"precision": "tf32"}, "runs": rows[:2]})
    assert measured(tmp_path) == {}


def test_inference_growth_updates_and_shards(tmp_path: Path) -> None:
    inference = [
        timing(network, "compiled+captured", "inference", ms, batch=batch)
        for network, batch, ms in (("base", 1, 1.0), ("fused", 1, 1.2), ("base", 256, 4.0), ("fused", 256, 4.4))
    ]
    write(tmp_path / GPU / "resnet56-c100-inference.json", {"timings": inference})
    growth = [timing("fused", "captured", "train", ms, experts=k) for k, ms in ((10, 8.0), (50, 12.0))]
    write(tmp_path / GPU / "resnet56-c100-train-as-experts-grow.json", {"timings": growth})
    rules = {"exact": {"share_of_epoch": 0.0378}, "greedy": {"share_of_epoch": 0.04}}
    write(tmp_path / GPU / "resnet56-c100-update.json", {"rules": rules})
    for name, mode, rate in (
        ("data-shards-compiled", "compiled+captured", 12_097.4),
        ("data-shards", "captured", 8852),
    ):
        write(tmp_path / GPU / f"{name}.json", {"mode": mode, "images_per_second": {"train": rate}})
    assert list(measured(tmp_path).values()) == [
        "1.20 at batch 1, 1.10 at batch 256",
        "1.50",
        "3.8% exact, 4.0% greedy",
        "12,097 images/s compiled+captured; 8,852 images/s captured",
    ]


def test_a_file_that_measured_something_else_is_as_none(tmp_path: Path) -> None:
    two_batches = [timing("fused", "captured", "train", 8.0, batch=batch) for batch in (64, 128)]
    write(tmp_path / GPU / "resnet56-c100-train-as-experts-grow.json", {"timings": two_batches})
    assert measured(tmp_path) == {}


def test_all_that_is_aimed_at_has_been_measured() -> None:
    assert len(measured(Path(__file__).parents[2] / "benchmarks" / "results")) == len(_MARKS)


def test_the_architecture_where_fusing_pays_least_is_named(tmp_path: Path) -> None:
    for name in ("alexnet-c100", "alexnet-quick-c100", "vgg11-c100", "nin-c100", "resnet56-c100", "alexnet-caffe"):
        fused = 10.02 if name == "nin-c100" else 8.0
        rows = [timing("loop", "eager", task, 10.0) for task in ("train", "forward")]
        rows += [timing("fused", "eager", "train", fused), timing("fused", "eager", "forward", 9.0)]
        write(tmp_path / CPU / f"{name}.json", {"timings": rows})
    assert list(measured(tmp_path).values()) == ["0.800 to 1.002 (nin-c100's train)"]
    nin = tmp_path / CPU / "nin-c100.json"
    rows = json.loads(nin.read_text())["timings"]
    write(nin, {"timings": [row | {"by_branches": row["milliseconds"] == 10.02} for row in rows]})
    told = "0.800 to 0.900 (alexnet-c100's forward); the loop itself, as fused were not faster: nin-c100's train"
    assert list(measured(tmp_path).values()) == [told]


def test_the_demo_is_whole_processes_and_a_stage_that_is_slower_is_shown(tmp_path: Path) -> None:
    before = {"base": [4.0, 8.0], "generalist": [6.0, 6.0], "experts": [5.0, 5.0]}
    after = {"base": [2.0, 7.0], "generalist": [3.0, 6.0], "experts": [6.0, 7.0]}
    seconds = {"before": [before, before], "after": [after, after]}
    write(tmp_path / CPU / "demo.json", {"seconds": seconds, "whole": {"before": [90, 110], "after": [70, 80]}})
    [told] = measured(tmp_path).values()
    assert told.startswith("0.75, 75 s where it was 100 s, medians of 2 turns; ")
    assert told.endswith("of its epochs base 0.75, generalist 0.75, experts 1.30")
