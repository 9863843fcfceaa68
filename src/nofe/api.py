"""`nofe.train`: the command line's `nofe train`, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nofe.architectures import architecture_named
from nofe.architectures.adapt import Build
from nofe.architectures.zoo import name_of, trust
from nofe.config import RunConfig, as_setting
from nofe.data import Dataset
from nofe.data.pairs import Pairs, dataset_of_pairs, parts_of
from nofe.errors import UserError
from nofe.files import expand_home
from nofe.pipeline import train as run_pipeline
from nofe.recipes import configured_or_resumed
from nofe.reuse import donors_named
from nofe.training.progress import Silent, progress_for_this_output
from nofe.training.runtime import launched_runtime


def configure(
    dataset: str = "",
    architecture: str | Build | None = None,
    experts: int | None = None,
    rule: str | None = None,
    seed: int | None = None,
    data_root: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    *,
    going_on_in: Path | None = None,
) -> RunConfig:
    """The recipe named, or the architecture's, or where weights are given `finetune`.

    Fields of `settings` are replaced ({"generalist.epochs": 5}). When a run is resumed, what is not given is as the
    run has it.
    """
    name = None if architecture is None else name_of(architecture)
    if name is not None:
        trust(name)
    chosen: dict[str, Any] = {
        "architecture": name,
        "data.name": dataset or None,
        "data.root": data_root,
        "recipe": recipe,
        "specialties.count": experts,
        "specialties.rule": rule,
        "seed": seed,
    }
    given = [as_setting(field, value) for field, value in (settings or {}).items()]
    return configured_or_resumed(chosen, given, going_on_in)


def train(
    out: Path | str,
    dataset: str | Dataset | Pairs | tuple[Pairs, Pairs] = "",
    architecture: str | Build | None = None,
    experts: int | None = None,
    *,
    rule: str | None = None,
    seed: int | None = None,
    data_root: Path | str | None = None,
    class_names: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    resume: bool = False,
    reuse: Sequence[Path | str] = (),
    device: str | torch.device = "auto",
    precision: str | None = None,
    compile: bool | None = None,
    capture: bool | None = None,
    kernels: str = "measure",
    checkpoint_seconds: float | None = None,
    sync_batch_norm: bool = False,
    workers: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train base, generalist and network of experts in the folder `out`; returns the summary of the run.

    `dataset`, `architecture` and `recipe` are names (see `nofe list`), by default those of the demo. `dataset` may be a
    `nofe.Dataset` in memory, too, or a Python data set of (image, label) pairs, such as torchvision's, or one for
    training and one for testing, whose classes `class_names` names where they do not; `architecture` a function or
    class of a module that gives an nn.Module for a number of classes, known to the run as python:MODULE:NAME. Load the
    result with `nofe.load(out)`. With `resume` a run in `out` is gone on with: what is not given is as the run has it,
    images in memory apart. Stages that the runs of `reuse` have trained alike are copied. In a script that torchrun
    starts, its processes train together, and each has the summary.
    """
    out = expand_home(out)
    _require_names_and_fields(rule, recipe, settings)
    parts = None if isinstance(dataset, str | Dataset) else parts_of(dataset)
    if parts is None and class_names is not None:
        raise UserError("class_names: is for pairs of image and label; this data set names its classes, leave it out")
    name = dataset if isinstance(dataset, str) else _name_of(dataset)
    settings = dict(settings or {}) | ({} if precision is None else {"precision": precision})
    going_on_in = out if resume else None
    if architecture is not None:
        trust(name_of(architecture))  # on every rank, as `configure` is called on the first alone
    with launched_runtime(
        str(device),
        compile=compile,
        capture=capture,
        kernels=kernels,
        checkpoint_seconds=checkpoint_seconds,
        sync_batch_norm=sync_batch_norm,
        workers=workers,
    ) as runtime:
        # By rank 0, which has the runs to go on with and to take from: the others may share no disk with it.
        donors = runtime.ranks.first(lambda: donors_named([reuse] if isinstance(reuse, str | Path) else reuse))
        config = runtime.ranks.first(
            lambda: configure(
                name, architecture, experts, rule, seed, data_root, settings, recipe, going_on_in=going_on_in
            )
        )
        if parts is not None:
            dataset = runtime.ranks.each(lambda: _images_of(parts, config, class_names, name))
        return run_pipeline(
            config,
            out,
            resume=resume,
            runtime=runtime,
            progress=Silent() if quiet else progress_for_this_output(),
            dataset=dataset if isinstance(dataset, Dataset) else None,
            donors=donors,
        )


def _require_names_and_fields(rule: object, recipe: object, settings: object) -> None:
    """A run is recorded as text, so that it can be repeated: objects of the caller's own are refused."""
    instead = {
        "rule": "with one of your own, alternate by hand (docs/training.md)",
        "recipe": "its fields are changed with settings={'experts.rate': 0.05}",
    }
    for what, given in (("rule", rule), ("recipe", recipe)):
        if not isinstance(given, str | None):
            raise UserError(f"{what}: not a name of nofe list but {type(given).__name__}; {instead[what]}")
    if not isinstance(settings, Mapping | None):
        kind = type(settings).__name__
        raise UserError(f"settings: not a dictionary but {kind}; give one such as {{'generalist.epochs': 5}}")


def _images_of(
    parts: tuple[Pairs, Pairs | None], config: RunConfig, class_names: Sequence[str] | None, name: str
) -> Dataset:
    return dataset_of_pairs(
        *parts,
        image_size=architecture_named(config.architecture).image_size,
        class_names=class_names,
        name=name,
        hold_out=config.data.test,
        seed=config.data.seed,
        skip_unreadable=config.data.skip_unreadable,
    )


def _name_of(dataset: Dataset | Pairs | tuple[Pairs, Pairs]) -> str:
    if isinstance(dataset, Dataset):
        return dataset.name
    return type(dataset[0] if isinstance(dataset, tuple) else dataset).__name__
