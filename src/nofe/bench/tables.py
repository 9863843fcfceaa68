"""Where what was measured is kept: one JSON file for each table, by device."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nofe.bench.cases import DEFAULT_EXPERTS
from nofe.files import slug
from nofe.runs import write_atomically
from nofe.training.runtime import Runtime, device_name

RESULTS = Path("benchmarks/results")


def keep(table: Mapping[str, Any], name: str, runtime: Runtime, out: Path | None = None) -> Path:
    """The file that it was written to: `out`, or by its name among those of the device."""
    out = out or RESULTS / folder_of(runtime) / f"{name}.json"
    write_atomically(out, (json.dumps(table, indent=1) + "\n").encode())
    return out


def folder_of(runtime: Runtime) -> str:
    """A name for the device: `nvidia-h200`, `amd-epyc-2-cores`."""
    return slug(device_name(runtime.device))


def table_name(architecture: str, tasks: Sequence[str] | None, grow: str | None, experts: Sequence[int]) -> str:
    parts = [architecture, *(tasks or ()), *(("as", grow, "grow") if grow else ())]
    if grow != "experts" and list(experts) != [DEFAULT_EXPERTS]:
        parts += [f"k{count}" for count in experts]
    return "-".join(parts)
