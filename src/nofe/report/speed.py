"""The page of speed: what was aimed at, and every table that was left under benchmarks/results/, as it was printed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nofe.report.marks import link_to, marks_in_words
from nofe.report.measured import (
    data_in_words,
    jobs_in_words,
    losses_in_words,
    runs_in_words,
    timings_in_words,
    update_in_words,
)

HEAD = """# Speed

Made by `nofe results` from the files under [benchmarks/results](../benchmarks/results) alone. Those that are compared
took turns in one run, so the ratios hold where the milliseconds, on machines that others use too, do not. `x base` is
the time and `x work` the multiplications beside the base's; the share of peak is of the largest matrix product of the
same run, which a convolution can outdo. The files have versions, commit and date.
"""

# What a file is, by a key that only its kind has.
WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "timings": timings_in_words,
    "runs": runs_in_words,
    "rules": update_in_words,
    "compared": losses_in_words,
    "images_per_second": data_in_words,
    "jobs": jobs_in_words,
}


def speed_page(folder: Path) -> str:
    parts = [HEAD]
    if short := marks_in_words(folder):
        parts.append(f"## In short\n\n{short}")
    for device in sorted(path for path in folder.iterdir() if path.is_dir()):
        parts.append(f"## {device.name}\n")
        others = []
        for file in sorted(device.glob("*.json")):
            measured = json.loads(file.read_text())
            words = next(
                (words for key, words in WORDS.items() if key in measured and "architecture" in measured), None
            )
            link = link_to(file)
            if words is None:
                others.append(link)
                continue
            environment = measured["jobs"][-1]["environment"] if "jobs" in measured else measured["environment"]
            made = f"{environment['date'][:10]}, torch {environment['versions']['torch']}, {environment['commit']}"
            parts.append(f"### {file.stem}\n\n{link}, {made}\n\n```\n{words(measured)}\n```\n")
            if (plot := file.with_suffix(".svg")).exists():
                parts.append(f"![{file.stem}](../benchmarks/results/{device.name}/{plot.name})\n")
        if others:
            parts.append(f"Also measured: {', '.join(others)}.\n")
    return "\n".join(parts)
