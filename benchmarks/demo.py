"""How long the demo takes at this commit, beside another one: the two in turns, one process after another.

    python benchmarks/demo.py 056ffae --turns 3

runs a plain `nofe train` of both commits, each from a checkout of its own and with an empty cache, and writes the
seconds of every epoch and of the whole process to benchmarks/results/<device>/demo.json. Let nothing else run
meanwhile.
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

ABOUT = (
    "nofe train, the demo: seconds of each epoch, evaluation included, and of the whole process; the two commits in "
    "turns, one process after another, on a machine whose speed varies"
)


def checked_out(commit: str, folder: Path) -> Path:
    if subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(folder), commit]).returncode:
        sys.exit(f"demo: {commit} cannot be checked out; name a commit of this repository")
    return folder


def demo_in(checkout: Path, settings: list[str]) -> tuple[float, dict[str, list[float]], dict[str, Any]]:
    """Seconds of the process, those of the epochs of each stage, and where it ran."""
    with tempfile.TemporaryDirectory() as empty:
        out = Path(empty) / "run"
        paths = {"PYTHONPATH": str(checkout / "src"), "NOFE_CACHE": f"{empty}/cache"}
        command = [sys.executable, "-m", "nofe", "train", "--out", str(out), *settings]
        clock = time.perf_counter()
        ended = subprocess.run(command, env=os.environ | paths, cwd=checkout, stdout=subprocess.DEVNULL).returncode
        whole = time.perf_counter() - clock
        if ended:
            sys.exit(f"demo: nofe train of {checkout.name} ended with {ended}; nothing was written")
        epochs: dict[str, list[float]] = {}
        for line in Run(out).metrics():
            if "epoch" in line:
                epochs.setdefault(line["stage"], []).append(round(line["seconds"], 3))
        environment = Run(out).read_json(runs.ENVIRONMENT)
    return round(whole, 1), epochs, environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the commit to compare with")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="as of nofe train, for a shorter trial; repeatable")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    settings = [part for setting in chosen.set for part in ("--set", setting)]
    table: dict[str, Any] = {"what": ABOUT, "seconds": {}, "whole": {}}
    with tempfile.TemporaryDirectory() as folder:
        commits = {"before": chosen.before, "after": "HEAD"}
        try:
            checkouts = {when: checked_out(commit, Path(folder) / when) for when, commit in commits.items()}
            for turn in range(chosen.turns):
                for when, checkout in checkouts.items():
                    whole, epochs, environment = demo_in(checkout, settings)
                    table["seconds"].setdefault(when, []).append(epochs)
                    table["whole"].setdefault(when, []).append(whole)
                    print(f"turn {turn + 1}, {when}: {whole} s", flush=True)
        finally:
            for when in commits:
                subprocess.run(["git", "worktree", "remove", "--force", str(Path(folder) / when)], capture_output=True)
    table["commits"] = {"before": chosen.before, "after": environment["commit"]}
    table["environment"] = {name: value for name, value in environment.items() if name != "data"}
    file = chosen.results / slug(environment["device"]) / "demo.json"
    write_atomically(file, (json.dumps(table, indent=1) + "\n").encode())
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
