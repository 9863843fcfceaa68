"""How long an update of the specialties takes, rule by rule.

    python benchmarks/specialties.py --device amd-epyc-2-cores

prints a table and writes benchmarks/results/<device>/specialties.json. Spectral is left out: it runs once, on a
confusion of classes, and never during the alternation.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nofe.specialties import Specialties, agreement, classes_moved, given_groups, random_balanced, update_named

SIZES = ((100, 10), (1000, 10), (1000, 40), (10_000, 100), (20_000, 200))  # (C, K)
REPEATS = 5
SEED = 0
HOME_SHARE = 0.5  # of a class's images go to its planted specialty, the rest anywhere


def planted_confusion(classes: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Counts (C, K) from 10,000 images, or from 10 a class where that is more."""
    chances = np.full((classes, count), (1 - HOME_SHARE) / count)
    chances[np.arange(classes), random_balanced(classes, count, rng).specialty_of_class] += HOME_SHARE
    return rng.multinomial(max(10, 10_000 // classes), chances)


def rules(
    confusion: npt.NDArray[np.int64], start: Specialties, strength: float
) -> dict[str, Callable[[np.random.Generator], Specialties]]:
    once = update_named("elasso", strength=strength)
    until_settled = update_named("elasso", strength=strength, sweeps=None)
    return {
        "fully-balanced": lambda rng: update_named("fully-balanced")(confusion, start, rng),
        "exact": lambda rng: update_named("exact")(confusion, start, rng),
        "elasso, 1 sweep": lambda rng: once(confusion, start, rng),
        "elasso, until settled": lambda rng: until_settled(confusion, start, rng),
        "argmax": lambda rng: update_named("argmax")(confusion, start, rng),
        "random": lambda rng: random_balanced(start.classes, start.count, rng),
        "groups": lambda rng: given_groups(start.specialty_of_class),
    }


def measure(classes: int, count: int) -> list[dict[str, Any]]:
    # Streams apart: from the rules' own seed, the random rule would draw the planted partition itself.
    rng = np.random.default_rng([SEED, 1])
    confusion = planted_confusion(classes, count, rng)
    start = random_balanced(classes, count, rng)
    # The price of imbalance grows with sqrt(K): at lambda 1000 and K=100 no class would move at all.
    strength = 1000 * math.sqrt(10 / count)
    rows = []
    for name, update in rules(confusion, start, strength).items():
        seconds = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            updated = update(np.random.default_rng([SEED, 2]))
            seconds.append(time.perf_counter() - began)
        row = {
            "classes": classes,
            "specialties": count,
            "images": int(confusion.sum()),
            "rule": name,
            "seconds_median": round(statistics.median(seconds), 6),
            "seconds_min": round(min(seconds), 6),
            "seconds_max": round(max(seconds), 6),
            "agreement": round(agreement(confusion, updated), 4),
            "moved": classes_moved(start, updated),
            "smallest": int(updated.sizes.min()),
            "largest": int(updated.sizes.max()),
        }
        if name.startswith("elasso"):
            row["strength"] = round(strength, 1)
        rows.append(row)
        print(
            f"{classes:>7,} {count:>4} {name:<22} {row['seconds_median']:>9.4f} {row['seconds_max']:>9.4f} "
            f"{row['agreement']:>9.4f} {row['moved']:>7,} {row['smallest']:>5} {row['largest']:>5}",
            flush=True,
        )
    return rows


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="folder under benchmarks/results, e.g. amd-epyc-2-cores")
    results = Path(__file__).parent / "results" / parser.parse_args().device

    began = time.perf_counter()
    import ot  # noqa: F401  (exact imports it at first use; timed apart)

    import_seconds = time.perf_counter() - began
    print("      C    K rule                    median s     max s agreement   moved   min   max")
    rows = [row for classes, count in SIZES for row in measure(classes, count)]
    report = {
        "benchmark": "specialties",
        "date": datetime.now(UTC).date().isoformat(),
        "device": {"cpu": processor(), "cores": os.cpu_count(), "machine": platform.machine()},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "POT")},
        },
        "seed": SEED,
        "repeats": REPEATS,
        "home_share": HOME_SHARE,
        "import_of_ot_seconds": round(import_seconds, 2),
        "rows": rows,
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / "specialties.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
