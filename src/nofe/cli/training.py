"""`nofe train`, and `nofe list` of the names that it knows."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nofe.cli.options import (
    DATA,
    EXPERTS,
    RUN,
    SPEED,
    TRAINING,
    ArchitectureName,
    Bases,
    BranchWidth,
    Compile,
    Cut,
    DataRoot,
    DatasetName,
    Device,
    FrozenTrunk,
    Kernels,
    Parameters,
    Precision,
    Pretrained,
    RecipeName,
    Settings,
    SkipUnreadable,
    WeightsFile,
    data_settings,
    network_settings,
)

if TYPE_CHECKING:
    from nofe.config import RunConfig
    from nofe.training.ranks import Ranks


def train(
    dataset: DatasetName = None,
    data_root: DataRoot = None,
    architecture: ArchitectureName = None,
    experts: Annotated[int | None, typer.Option(help="K, the number of experts.", rich_help_panel=EXPERTS)] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="How classes are grouped into specialties; see nofe list.", rich_help_panel=EXPERTS),
    ] = None,
    recipe: RecipeName = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of weights, order, augmentation and specialties.", rich_help_panel=TRAINING),
    ] = None,
    pretrained: Pretrained = False,
    weights: WeightsFile = None,
    frozen_trunk: FrozenTrunk = False,
    cut: Cut = None,
    branch_width: BranchWidth = None,
    parameters: Parameters = None,
    base: Bases = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; by default a new one in runs/.", rich_help_panel=RUN)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.", rich_help_panel=RUN)] = False,
    set_: Settings = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="Copy stages from this run where they were trained the same way. Repeatable.",
            rich_help_panel=RUN,
        ),
    ] = None,
    skip_unreadable: SkipUnreadable = False,
    device: Device = "auto",
    precision: Precision = None,
    compile_: Compile = None,
    capture: Annotated[
        bool | None, typer.Option(help="Run each step as a CUDA graph; default on CUDA.", rich_help_panel=SPEED)
    ] = None,
    kernels: Kernels = "measure",
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Least time between two checkpoints; by default they take 1% of the time.",
            rich_help_panel=RUN,
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that decode images; 0 is one per core.", rich_help_panel=DATA)
    ] = 0,
    sync_batch_norm: Annotated[
        bool,
        typer.Option(
            "--sync-batch-norm/--no-sync-batch-norm",
            help="Normalise over the images of all ranks (torchrun).",
            rich_help_panel=SPEED,
        ),
    ] = False,
) -> None:
    """Train a base and a network of experts, and compare them.

    On several GPUs: torchrun --nproc-per-node N -m nofe train ...
    """
    from nofe import pipeline, runs
    from nofe.architectures.zoo import trust
    from nofe.report.text import comparison, specialties_at_a_glance
    from nofe.reuse import donors_named
    from nofe.training.progress import Silent, progress_for_this_output
    from nofe.training.runtime import launched_runtime

    chosen: dict[str, Any] = {
        **data_settings(dataset, data_root, skip_unreadable),
        "architecture": architecture,
        "recipe": recipe,
        **network_settings(pretrained, weights, frozen_trunk, cut, branch_width, parameters),
        "specialties.count": experts,
        "specialties.rule": rule,
        "seed": seed,
        "base.by": base,
        "precision": precision,
    }
    if architecture is not None:
        trust(architecture)
    with launched_runtime(
        device,
        compile=compile_,
        capture=capture,
        kernels=kernels,
        checkpoint_seconds=checkpoint_seconds,
        sync_batch_norm=sync_batch_norm,
        workers=workers,
    ) as runtime:
        ranks = runtime.ranks
        donors = ranks.first(lambda: donors_named(reuse or []))
        config, folder = ranks.first(lambda: _configured(chosen, set_ or [], out, resume, ranks))
        progress = progress_for_this_output() if ranks.rank == 0 else Silent()
        if resume and not (folder / runs.CONFIG).exists():
            progress.say(f"{folder}: no run to go on with is here; starting one")
        summary = pipeline.train(config, folder, resume=resume, runtime=runtime, progress=progress, donors=donors)
        if config.until != "base":
            progress.say(ranks.first(lambda: specialties_at_a_glance(folder)))
        progress.say(comparison(summary))
        page = f"open {folder / 'report.html'}, or: " if config.until == "experts" else "next: "
        is_judged = config.until != "specialties" or config.base.by != "none"
        command = f"nofe evaluate {folder}" if is_judged else f"nofe specialties {folder}"
        progress.say(f"The run is in {folder}; {page}{command}")


def _configured(
    chosen: Mapping[str, Any], settings: list[str], out: Path | None, resume: bool, ranks: "Ranks"
) -> "tuple[RunConfig, Path]":
    """The configuration: of the run that is resumed, or the architecture's own, with what the user chose."""
    from nofe.recipes import configured, configured_or_resumed

    if out is None:
        usual = _usual(configured(chosen, settings))
        out = usual if resume else _chosen(usual, ranks)
    return configured_or_resumed(chosen, settings, out if resume else None), out


def _usual(config: "RunConfig") -> Path:
    """The folder of a run for which none is named."""
    kind = config.data.name.partition(":")[0]
    architecture = re.sub(r"[^\w.-]+", "-", config.architecture)
    return Path("runs") / f"{kind}-{architecture}-k{config.specialties.count}"


def _chosen(out: Path, ranks: "Ranks") -> Path:
    """A free folder; where torchrun has started the processes again, the one that was chosen the first time."""
    chosen = Path(ranks.recall(f"chosen for {out}") or _free(out))
    ranks.remember(f"chosen for {out}", str(chosen))
    return chosen


def _free(out: Path) -> Path:
    numbered = (out, *(out.with_name(f"{out.name}-{number}") for number in range(2, 10_000)))
    return next(path for path in numbered if not path.exists())


def list_() -> None:
    """List architectures, data sets, recipes and specialty rules."""
    from nofe.architectures import summaries
    from nofe.data import DATASETS
    from nofe.recipes import SUMMARIES
    from nofe.specialties import RULES

    tables = {
        "architectures": summaries(),
        "data sets": dict(DATASETS),
        "recipes": SUMMARIES,
        "specialty rules": {name: rule.summary for name, rule in RULES.items()},
    }
    for title, rows in tables.items():
        print(title)
        for name, summary in rows.items():
            print(f"  {name:<20} {summary}")
