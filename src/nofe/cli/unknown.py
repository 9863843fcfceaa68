"""What an option that a command does not have is answered with: the one that was meant, or the field of --set."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

ELSEWHERE = {  # what other programs call our options and fields
    "arch": "architecture",
    "backbone": "architecture",
    "batch-size": "batch",
    "bs": "batch",
    "checkpoint": "resume",
    "classifier": "architecture",
    "clusters": "experts",
    "data": "dataset",
    "data-dir": "dataset",
    "data-path": "dataset",
    "ema-decay": "ema",
    "fp16": "precision",
    "freeze": "frozen-trunk",
    "gpu": "device",
    "k": "experts",
    "learning-rate": "rate",
    "lr": "rate",
    "model": "architecture",
    "network": "architecture",
    "n-experts": "experts",
    "num-epochs": "epochs",
    "num-experts": "experts",
    "num-workers": "workers",
    "opt": "optimizer",
    "optim": "optimizer",
    "output": "out",
    "output-dir": "out",
    "out-dir": "out",
    "o": "out",
    "random-seed": "seed",
    "save-dir": "out",
    "specialties": "experts",
    "wd": "weight-decay",
}


def instead_of(option: str, words: Sequence[str], options: Sequence[str]) -> str | None:
    """What to write in its place on the command line `words` of a command that has `options`; None if nobody knows."""
    name = option.lstrip("-").replace("_", "-").lower()
    name = ELSEWHERE.get(name, name)
    value = _value_of(option, words)
    known = [each.removeprefix("--") for each in options]
    if own := _nearest(name, [each for each in known if each.startswith("no-") == name.startswith("no-")]):
        return f"--{own}{f' {value}' if value else ''}"
    return _as_settings(name.replace("-", "_"), value or "VALUE") if "--set" in options else None


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """That itself, if it is known, or what it is a slip of."""
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0.8)), None)


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
        if word == option and place + 1 < len(words) and not words[place + 1].startswith("-"):
            return words[place + 1]
    return None


def _as_settings(name: str, value: str) -> str | None:
    """Of every stage that has such a field. The paper's own recipe of a base is not what is meant."""
    paths = [path for path in _paths() if not path.startswith("base.paper.")]
    meant = _nearest(name, {path.rpartition(".")[2] for path in paths})
    return " ".join(f"--set {path}={value}" for path in paths if path.rpartition(".")[2] == meant) or None


def _paths() -> list[str]:
    """Of all fields of a configuration."""
    from nofe.config import to_json
    from nofe.recipes import default_run

    def within(value: dict[str, Any], before: str) -> list[str]:
        paths = []
        for name, inner in value.items():
            paths += within(inner, f"{before}{name}.") if isinstance(inner, dict) else [before + name]
        return paths

    return within(to_json(default_run()), "")
