"""How long `nofe train` takes from the start of its process to its end, where nothing is compiled or chosen yet.

    python benchmarks/whole_job.py --data-root data --seed 2 --rule exact

trains the generalist (12 epochs) and the experts (60) of ResNet56-C100 on CIFAR-100, K=10, with all that belongs to it:
imports, compilation, evaluation, report. What it took, by parts, and the accuracy are added to
benchmarks/results/<device>/resnet56-c100-whole-job.json. With --keep the folder of the run stays, for others to take
its stages from.

On a machine that has just been started the files of torch and CUDA are read from a slow disk, some ten seconds: before
the job a small network is trained on glyphs in the same way, so that they are in memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nofe import runs
from nofe.files import slug
from nofe.runs import Run, write_atomically

ARCHITECTURE = "resnet56-c100"
JOB = ["--architecture", ARCHITECTURE, "--dataset", "cifar100", "--experts", "10", "--base", "none"]
ABOUT = (
    "nofe train, without a base; seconds from the start of the process to its end, nothing compiled or chosen before"
)
SMALL_JOB = ["--architecture", "small", "--dataset", "glyphs", "--experts", "10", "--base", "none", "--compile"]
SMALL_JOB += ["--set", "generalist.epochs=1", "--set", "experts.epochs=1"]


def caches_in(folder: str) -> dict[str, str]:
    """Where it is empty nothing is compiled or chosen yet."""
    return {name: f"{folder}/{name}" for name in ("NOFE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}


def timed(out: Path, arguments: list[str]) -> dict[str, Any]:
    train = [sys.executable, "-m", "nofe", "train"]
    with tempfile.TemporaryDirectory() as another:
        first = [*train, *SMALL_JOB, "--out", f"{another}/run"]
        if ended := subprocess.run(first, env=os.environ | caches_in(another), stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"whole_job: nofe train of a small network ended with {ended}; nothing else was trained")
    with tempfile.TemporaryDirectory() as empty:
        began, clock = time.time(), time.perf_counter()
        ended = subprocess.run(
            [*train, *JOB, "--out", str(out), *arguments], env=os.environ | caches_in(empty)
        ).returncode
        seconds = time.perf_counter() - clock
    if ended:
        sys.exit(f"whole_job: nofe train ended with {ended}; nothing was added")
    run = Run(out)
    config = run.read_json(runs.CONFIG)
    time_of = {name: run.file(name).stat().st_mtime for name in (runs.CONFIG, runs.TIME)}
    environment = {name: value for name, value in run.read_json(runs.ENVIRONMENT).items() if name != "data"}
    return {
        "seconds": round(seconds, 1),
        "files_in_memory": True,
        "parts": {part: round(took, 1) for part, took in run.read_json(runs.TIME).items()},
        "until_images_are_read": round(time_of[runs.CONFIG] - began, 1),
        "after_the_report": round(began + seconds - time_of[runs.TIME], 1),
        "accuracy": run.read_json(runs.SUMMARY)["networks"]["experts"]["accuracy"],
        "rule": config["specialties"]["rule"],
        "seed": environment["seed"],
        "environment": environment,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--rule", default="fully-balanced")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="the folder of the run; by default it is deleted")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    if chosen.keep and chosen.keep.exists():
        parser.error(f"--keep {chosen.keep}: is there already; name a new folder")
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--data-root", chosen.data_root, "--rule", chosen.rule, "--seed", str(chosen.seed)]
        job = timed(chosen.keep or Path(folder) / "run", arguments)
    path = chosen.results / slug(job["environment"]["device"]) / f"{ARCHITECTURE}-whole-job.json"
    known = json.loads(path.read_text()) if path.exists() else {"architecture": ARCHITECTURE, "what": ABOUT, "jobs": []}
    known["jobs"].append(job)
    write_atomically(path, (json.dumps(known, indent=1) + "\n").encode())
    print(f"{job['seconds']:.1f} s, {job['accuracy']:.2%}; {path}")


if __name__ == "__main__":
    main()
