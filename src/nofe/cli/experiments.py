"""Many runs: `nofe sweep`, `nofe reproduce`, and `nofe results` of what they gave."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nofe.cli.options import (
    EXPERTS,
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
    Minutes,
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
from nofe.side_by_side import AT_ONCE

if TYPE_CHECKING:
    from nofe.side_by_side import Outcome

MARK, SIZE_OF_A_HEAD = b"by `nofe results`", 1000  # its own pages have this mark in their first bytes


def sweep(
    dataset: DatasetName = None,
    data_root: DataRoot = None,
    architecture: ArchitectureName = None,
    experts: Annotated[
        list[int] | None, typer.Option(help="K, the number of experts. Repeatable.", rich_help_panel=EXPERTS)
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="How classes are grouped into specialties. Repeatable.", rich_help_panel=EXPERTS),
    ] = None,
    recipe: RecipeName = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, ...", rich_help_panel=TRAINING)] = 3,
    pretrained: Pretrained = False,
    weights: WeightsFile = None,
    frozen_trunk: FrozenTrunk = False,
    cut: Cut = None,
    branch_width: BranchWidth = None,
    parameters: Parameters = None,
    base: Bases = None,
    set_: Settings = None,
    skip_unreadable: SkipUnreadable = False,
    out: Annotated[Path, typer.Option(help="Folder in which each run gets its own.")] = Path("runs/sweep"),
    side_by_side: Annotated[int, typer.Option(min=0, help="Runs at a time; 0 is 8 on a GPU, else 1.")] = 0,
    minutes: Minutes = None,
    device: Device = "auto",
    precision: Precision = None,
    compile_: Compile = None,
) -> None:
    """Train several seeds, numbers of experts and rules side by side, and compare them."""
    from nofe.architectures.zoo import trust
    from nofe.recipes import configured
    from nofe.sweep import TrainingOptions, sweep_in_words, trainings
    from nofe.sweep import sweep as run_all
    from nofe.training.runtime import is_on_cuda

    chosen: dict[str, Any] = {
        **data_settings(dataset, data_root, skip_unreadable),
        "architecture": architecture,
        "recipe": recipe,
        **network_settings(pretrained, weights, frozen_trunk, cut, branch_width, parameters),
        "base.by": base,
        "precision": precision,
    }
    _refuse_settings_of_the_sweep(set_ or [], {"seed": "--seeds"} | _chosen_by(experts, rule))
    if architecture is not None:
        trust(architecture)
    jobs = trainings(configured(chosen, set_ or []), range(seeds), experts or [], rule or [])
    at_once = side_by_side or (AT_ONCE if is_on_cuda(device) else 1)
    options = TrainingOptions(device, compile_, "known" if at_once > 1 else "measure")
    outcome = run_all(jobs, out, options, at_once=at_once, minutes=minutes)
    print(f"\n{sweep_in_words(jobs, out)}\n\nThe runs are in {out}.")
    _require_all_done("sweep", outcome)


def _chosen_by(experts: list[int] | None, rule: list[str] | None) -> dict[str, str]:
    """The fields that the given options set, each with its option."""
    options = {"specialties.count": ("--experts", experts), "specialties.rule": ("--rule", rule)}
    return {field: option for field, (option, given) in options.items() if given}


def _refuse_settings_of_the_sweep(settings: list[str], option_of: dict[str, str]) -> None:
    """The options of the sweep would override them without a word."""
    from nofe.errors import UserError

    for setting in settings:
        if option := option_of.get(setting.partition("=")[0].strip()):
            raise UserError(f"--set {setting}: a sweep sets this by {option}; use that option alone")


def reproduce(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Tables to train (see --list), or all.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List every table and figure: rows, cost, state.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, ...")] = 3,
    minutes: Minutes = None,
    gone_in: Annotated[
        float | None,
        typer.Option(min=0, help="The machine is gone after these minutes: begin only what may end by then."),
    ] = None,
    side_by_side: Annotated[int, typer.Option(min=1, help="Runs at a time on the device.")] = AT_ONCE,
    data_root: Annotated[Path, typer.Option(help="Folder that holds CIFAR-100, or to download it to.")] = Path("data"),
    work: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/reproduce"),
    folder: Annotated[Path, typer.Option(help="Folder for one JSON file per finished run, by device.")] = Path(
        "results"
    ),
    dataset: Annotated[
        str | None, typer.Option(help="ImageNet, as folder:PATH or shards:PATH; by default folder:DATA_ROOT/imagenet.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only experiments with this in their name. Repeatable.")
    ] = None,
    device: Device = "auto",
    compile_: Compile = None,
) -> None:
    """Train the missing rows of the paper's tables, and print the tables beside the paper's."""
    from nofe.data import is_listed
    from nofe.errors import UserError
    from nofe.experiments import page
    from nofe.experiments.costs import growth_in
    from nofe.experiments.imagenet_tables import on_data
    from nofe.experiments.reproduce import Workshop, missing
    from nofe.experiments.reproduce import reproduce as run_all
    from nofe.experiments.results import results_in
    from nofe.experiments.tables import TABLES, experiments_of, tables_named

    if list_:
        listed = tables_named(tables) if tables else list(TABLES.values())
        print(page.overview(listed, seeds, results_in(folder), growth_in(Path("benchmarks/results")), side_by_side))
        return
    if not tables:
        raise UserError("reproduce: no table is named; see nofe reproduce --list, or name all")
    chosen = tables_named(tables)
    experiments = experiments_of(chosen)
    if only:
        for part in only:
            if not any(part in each.name for each in experiments):
                raise UserError(f"--only {part}: no experiment of these tables has this in its name; see --list")
        experiments = [each for each in experiments if any(part in each.name for part in only)]
    imagenet = dataset or f"folder:{data_root / 'imagenet'}"
    if not is_listed(imagenet):
        raise UserError(f"--dataset {imagenet}: says where ImageNet lies; write folder:PATH or shards:PATH")
    jobs = [
        replace(job, experiment=on_data(job.experiment, imagenet))
        for job in missing(experiments, seeds, results_in(folder))
    ]
    print(f"{len(jobs)} runs are missing")
    workshop = Workshop(work, folder, data_root, device, compile_)
    outcome = None
    if jobs:
        outcome = run_all(jobs, workshop, side_by_side=side_by_side, minutes=minutes, gone_in=gone_in)
    found = results_in(folder)
    for table in chosen:
        print(f"\n{page.table_in_words(table, found)}")
    if outcome:
        _require_all_done("reproduce", outcome)


def _require_all_done(verb: str, outcome: "Outcome") -> None:
    """An error with what is left, if anything is: the same command goes on with it, but for jobs that failed."""
    from nofe.errors import RunError, UserError

    if not (unfinished := outcome.in_words()):
        return
    if outcome.stopped or outcome.not_begun:
        unfinished += "; run the command again to go on" + (" with those that did not fail" if outcome.failed else "")
    else:
        unfinished += "; each line above says why"
    wrong_input = outcome.failed and outcome.refused == outcome.failed
    raise (UserError if wrong_input else RunError)(f"{verb}: {unfinished}")


def results(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Finished runs to add to the results.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder with one JSON file per run, by device.")] = Path("results"),
    page: Annotated[Path, typer.Option(help="The page to write, made from these files alone.")] = Path(
        "docs/results.md"
    ),
    benchmarks: Annotated[
        Path, typer.Option(help="Folder with results of nofe bench, for speed.md beside the page.")
    ] = Path("benchmarks/results"),
) -> None:
    """Add finished runs to results/, and write docs/results.md, docs/speed.md and the README's table."""
    from nofe.experiments.index import Index
    from nofe.experiments.markdown import results_page
    from nofe.experiments.pictures import pictures
    from nofe.experiments.readme import comparison_table, with_table
    from nofe.experiments.results import file_result, read_results
    from nofe.report.speed import speed_page
    from nofe.runs import Run, write_atomically

    speed = page.with_name("speed.md") if benchmarks.is_dir() else None
    _require_own_page(page)
    if speed is not None:
        _require_own_page(speed)
    for run in runs or []:
        print(f"wrote {file_result(Run(run), folder)}")
    found = read_results(folder)
    for name, png in pictures(Index(found)).items():
        write_atomically(page.parent / "figures" / name, png)
    write_atomically(page, results_page(found, benchmarks).encode())
    print(f"wrote {page}")
    readme = page.parent.parent / "README.md"  # above docs/; one without the marks of the table is left alone
    if readme.exists() and (text := readme.read_text()) != (made := with_table(text, comparison_table(Index(found)))):
        write_atomically(readme, made.encode())
        print(f"wrote the table of {readme}")
    if speed is not None:
        write_atomically(speed, speed_page(benchmarks).encode())
        print(f"wrote {speed}")


def _require_own_page(page: Path) -> None:
    """That a page to be replaced was written by `nofe results`, and not by hand."""
    from nofe.errors import UserError

    if page.exists() and (not page.is_file() or MARK not in page.read_bytes()[:SIZE_OF_A_HEAD]):
        raise UserError(f"{page}: nofe results did not write it and would replace it; name another page with --page")
