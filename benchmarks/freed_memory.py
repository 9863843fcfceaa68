"""What a training step on a CPU gains where freed memory is kept: with and without, in turns, one process each.

    python benchmarks/freed_memory.py --turns 5

times steps of the demo's base and experts, and counts the pages that the system clears for them; see
src/nofe/training/memory.py. Written to benchmarks/results/<device>/freed-memory.json.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nofe.bench.cases import Case
from nofe.bench.steps import prepare
from nofe.files import slug
from nofe.runs import write_atomically
from nofe.training import runtime as of_runtime

ABOUT = (
    "a training step of the network `small` on noise, 120 classes, K=10, batch 64, on a CPU: milliseconds, the median "
    "of the steps of each process, and pages cleared a step; processes that keep freed memory, and such that return it "
    "to the system, in turns"
)
STEPS = 60
NETWORKS, MEMORIES = ("base", "fused"), ("returned", "kept")


def steps_of_this_process(network: str, memory: str) -> dict[str, Any]:
    if memory == "returned":
        of_runtime.keep_freed_memory = lambda: None
    runtime = of_runtime.make_runtime("cpu", kernels="together")
    case = Case(network, "eager", "train", classes=120, experts=0 if network == "base" else 10, batch=64)
    step = prepare("small", case, runtime)
    cleared = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seconds = []
    for _ in range(STEPS):
        clock = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - clock)
    cleared = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - cleared
    measured = {"milliseconds": round(1000 * statistics.median(seconds), 2), "pages": round(cleared / STEPS)}
    return {"environment": of_runtime.environment(runtime, seed=0), "measured": measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--this", nargs=2, metavar=("NETWORK", "MEMORY"), help="one process: measure and print")
    chosen = parser.parse_args()
    if chosen.this:
        print(json.dumps(steps_of_this_process(*chosen.this)))
        return
    table: dict[str, Any] = {"what": ABOUT, "turns": {}}
    for _ in range(chosen.turns):
        for network in NETWORKS:
            for memory in MEMORIES:
                command = [sys.executable, __file__, "--this", network, memory]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    sys.exit(f"freed_memory: {network}, {memory}: ended with {done.returncode}; nothing was written")
                answer = json.loads(done.stdout)
                table["turns"].setdefault(network, {}).setdefault(memory, []).append(answer["measured"])
                table["environment"] = answer["environment"]
                print(network, memory, answer["measured"], flush=True)
    file = chosen.results / slug(table["environment"]["device"]) / "freed-memory.json"
    write_atomically(file, (json.dumps(table, indent=1) + "\n").encode())
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
