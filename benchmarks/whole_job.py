"""How long `nofe train` takes from the start of its process to its end, where nothing is compiled or chosen yet.

    python benchmarks/whole_job.py --data-root data --seed 2

trains the generalist (12 epochs) and the experts (60) of ResNet56-C100 on CIFAR-100, K=10, with all that belongs to it:
imports, compilation, evaluation, report. What it took, by parts, and the accuracy are added to
benchmarks/results/<device>/resnet56-c100-whole-job.json. The folder of the run, for others to take stages from, is kept
with --keep. Arguments that are not known here go to `nofe train`.
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


def timed(out: Path, arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as empty:
        caches = {"NOFE_CACHE": f"{empty}/nofe", "TORCHINDUCTOR_CACHE_DIR": f"{empty}/torch"}
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "nofe", "train", *JOB, "--out", str(out), *arguments],
            env=os.environ | caches,
            check=True,
        )
        seconds = time.perf_counter() - began
    run = Run(out)
    environment, config = run.read_json(runs.ENVIRONMENT), run.read_json(runs.CONFIG)
    return {
        "seconds": round(seconds, 1),
        "parts": {part: round(took, 1) for part, took in run.read_json(runs.TIME).items()},
        "accuracy": run.read_json(runs.SUMMARY)["networks"]["experts"]["accuracy"],
        "rule": config["specialties"]["rule"],
        "seed": environment["seed"],
        "environment": environment,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="the folder of the run; by default it is deleted")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    chosen, others = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        out = chosen.keep or Path(folder) / "run"
        job = timed(out, ["--data-root", chosen.data_root, "--seed", str(chosen.seed), *others])
    path = chosen.results / slug(job["environment"]["device"]) / f"{ARCHITECTURE}-whole-job.json"
    known = json.loads(path.read_text()) if path.exists() else {"architecture": ARCHITECTURE, "what": ABOUT, "jobs": []}
    known["jobs"].append(job)
    write_atomically(path, (json.dumps(known, indent=1) + "\n").encode())
    print(f"{job['seconds']:.1f} s, {job['accuracy']:.2%}; {path}")


if __name__ == "__main__":
    main()
