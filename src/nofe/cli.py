"""The command line: a few verbs; every other field of the configuration is reached by --set."""

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nofe.config import RunConfig
    from nofe.training.ranks import Ranks

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Turn an image classifier into a network of experts: one trunk, K branches, one softmax.",
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Run the code of a python: architecture.")]
DataRoot = Annotated[Path | None, typer.Option(help="Where data sets lie, or are downloaded to.")]
DatasetName = Annotated[
    str | None, typer.Option("--dataset", help="glyphs, cifar100, folder:PATH, shards:PATH ...; see nofe list.")
]
ArchitectureName = Annotated[str | None, typer.Option("--architecture", help="See nofe list.")]
RecipeName = Annotated[str | None, typer.Option("--recipe", help="How all networks are trained; see nofe list.")]
Bases = Annotated[str | None, typer.Option("--base", help="Bases to compare: experts, paper, both, none.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="e.g. generalist.epochs=5; repeatable."),
]
Precision = Annotated[str | None, typer.Option("--precision", help="auto, bf16, tf32 or fp32.")]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile.")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Stop after this time; go on with the same command.")]


@app.command()
def train(
    dataset: DatasetName = None,
    data_root: DataRoot = None,
    architecture: ArchitectureName = None,
    recipe: RecipeName = None,
    experts: Annotated[int | None, typer.Option(help="K, the number of experts.")] = None,
    rule: Annotated[str | None, typer.Option(help="How specialties are chosen; see nofe list.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order, augmentation and partition.")] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Start from the library's weights.")] = False,
    weights: Annotated[Path | None, typer.Option(help="Start from the weights in this file.")] = None,
    frozen_trunk: Annotated[bool, typer.Option("--frozen-trunk", help="Train heads and branches alone.")] = False,
    cut: Annotated[str | None, typer.Option(help="Experts begin with this layer.")] = None,
    branch_width: Annotated[float | None, typer.Option(help="Of the layers inside a branch; 1 is full.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Narrow the branches to so many in all.")] = None,
    base: Bases = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; by default a new one in runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    set_: Settings = None,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Take stages that this run has trained alike from there; repeatable."),
    ] = None,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave such images out.")] = False,
    device: Device = "auto",
    precision: Precision = None,
    compile_: Compile = None,
    capture: Annotated[bool | None, typer.Option(help="Steps as CUDA graphs.")] = None,
    kernels: Annotated[
        str, typer.Option(help="measure, known, together, loop, product, winograd, branches.")
    ] = "measure",
    checkpoint_seconds: Annotated[
        float | None, typer.Option(help="Least time between two checkpoints; by default they take 1% of the time.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode images; 0 is one a core.")] = 0,
    sync_batch_norm: Annotated[
        bool, typer.Option("--sync-batch-norm/--no-sync-batch-norm", help="Over the images of all ranks.")
    ] = False,
) -> None:
    """Train a base and a network of experts, and compare them. On several GPUs: torchrun ... -m nofe train ..."""
    from nofe import pipeline, runs
    from nofe.architectures.zoo import trust
    from nofe.errors import UserError
    from nofe.report.text import comparison, specialties_in_words
    from nofe.training.progress import Silent, progress_for_this_output
    from nofe.training.runtime import launched_runtime

    chosen: dict[str, Any] = {
        "data.name": dataset,
        "data.root": None if data_root is None else str(data_root),
        "data.skip_unreadable": True if skip_unreadable else None,
        "architecture": architecture,
        "recipe": recipe,
        "adapt.weights": _weights(pretrained, weights),
        "adapt.frozen_trunk": True if frozen_trunk else None,
        "adapt.cut": cut,
        "adapt.branch_width": branch_width,
        "adapt.parameters": parameters,
        "specialties.count": experts,
        "specialties.rule": rule,
        "seed": seed,
        "base.by": base,
        "precision": precision,
    }
    for donor in reuse or []:
        if not (donor / runs.CONFIG).exists():
            raise UserError(f"--reuse {donor}: no run is here (there is no {runs.CONFIG}); name the folder of one")
    if architecture is not None:
        trust(architecture)
    given = {name: value for name, value in chosen.items() if value is not None}
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
        config, folder = ranks.first(lambda: _configured(given, set_ or [], out, resume, ranks))
        progress = progress_for_this_output() if ranks.rank == 0 else Silent()
        if resume and not (folder / runs.CONFIG).exists():
            progress.say(f"{folder}: no run to go on with is here; starting one")
        summary = pipeline.train(config, folder, resume=resume, runtime=runtime, progress=progress, donors=reuse or [])
        if config.until != "base":
            progress.say(ranks.first(lambda: specialties_in_words(folder)))
        progress.say(comparison(summary))
        if config.until == "experts":
            progress.say(f"The run is in {folder}; open {folder / 'report.html'}, or: nofe evaluate {folder}")


@app.command()
def sweep(
    dataset: DatasetName = None,
    data_root: DataRoot = None,
    architecture: ArchitectureName = None,
    recipe: RecipeName = None,
    experts: Annotated[list[int] | None, typer.Option(help="K, the number of experts; repeatable.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="How specialties are chosen; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many: 0, 1, ...")] = 3,
    base: Bases = None,
    set_: Settings = None,
    out: Annotated[Path, typer.Option(help="A folder for the folders of the runs.")] = Path("runs/sweep"),
    side_by_side: Annotated[int, typer.Option(min=0, help="Runs at a time; 0 is 8 on a GPU, 1 elsewhere.")] = 0,
    minutes: Minutes = None,
    device: Device = "auto",
    precision: Precision = None,
    compile_: Compile = None,
) -> None:
    """Train with several seeds, numbers of experts and rules, side by side, and compare them."""
    from nofe.architectures.zoo import trust
    from nofe.errors import RunError
    from nofe.sweep import TrainingOptions, sweep_in_words, trainings
    from nofe.sweep import sweep as run_all
    from nofe.training.runtime import is_on_cuda

    chosen: dict[str, Any] = {
        "data.name": dataset,
        "data.root": None if data_root is None else str(data_root),
        "architecture": architecture,
        "recipe": recipe,
        "base.by": base,
        "precision": precision,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    if architecture is not None:
        trust(architecture)
    jobs = trainings(_config(given, set_ or []), range(seeds), experts or [], rule or [])
    at_once = side_by_side or (8 if is_on_cuda(device) else 1)
    options = TrainingOptions(device, compile_, "known" if at_once > 1 else "measure")
    outcome = run_all(jobs, out, options, at_once=at_once, minutes=minutes)
    print(f"\n{sweep_in_words(jobs, out)}\n\nThe runs are in {out}.")
    if unfinished := outcome.in_words():
        raise RunError(f"sweep: {unfinished}; run the command again to go on")


def _config(chosen: dict[str, Any], settings: list[str]) -> "RunConfig":
    """The architecture's own configuration, with what the user chose."""
    from nofe.config import as_setting, with_settings
    from nofe.recipes import DEMO_ARCHITECTURE, DEMO_DATASET, default_run, recipe_for

    chosen = dict(chosen)
    architecture, dataset = chosen.pop("architecture", DEMO_ARCHITECTURE), chosen.pop("data.name", DEMO_DATASET)
    by_setting = [setting.partition("=")[2] for setting in settings if setting.startswith("adapt.weights=")]
    weights = by_setting[-1] if by_setting else chosen.get("adapt.weights", "")
    config = default_run(architecture, dataset, chosen.pop("recipe", None) or recipe_for(weights))
    return with_settings(config, [*(as_setting(name, value) for name, value in chosen.items()), *settings])


def _configured(
    chosen: dict[str, Any], settings: list[str], out: Path | None, resume: bool, ranks: "Ranks"
) -> "tuple[RunConfig, Path]":
    """The configuration: of the run that is resumed, or the architecture's own, with what the user chose."""
    from nofe import runs
    from nofe.config import as_setting, from_json, with_settings
    from nofe.errors import UserError
    from nofe.runs import Run

    if out is not None and resume and (out / runs.CONFIG).exists():
        if (recipe := chosen.pop("recipe", None)) is not None:
            raise UserError(f"--recipe {recipe}: the run in {out} has its own; leave it out to go on with that run")
        given = [as_setting(name, value) for name, value in chosen.items()]
        config: RunConfig = with_settings(from_json(Run(out).read_config()), [*given, *settings])
    else:
        config = _config(chosen, settings)
    if out is None:
        kind = config.data.name.partition(":")[0]
        architecture = re.sub(r"[^\w.-]+", "-", config.architecture)
        out = Path("runs") / f"{kind}-{architecture}-k{config.specialties.count}"
        out = out if resume else _chosen(out, ranks)
    return config, out


def _chosen(out: Path, ranks: "Ranks") -> Path:
    """A free folder; the one that was free at first, when torchrun starts the processes again."""
    chosen = Path(ranks.recall(f"chosen for {out}") or _free(out))
    ranks.remember(f"chosen for {out}", str(chosen))
    return chosen


def _weights(pretrained: bool, weights: Path | None) -> str | None:
    if pretrained and weights is not None:
        from nofe.errors import UserError

        raise UserError(f"--pretrained and --weights {weights}: two sources of weights; give one of them")
    return "pretrained" if pretrained else None if weights is None else str(weights)


def _trust_code_of(run: Path) -> None:
    from nofe.architectures.zoo import trust
    from nofe.runs import Run

    trust(str(Run(run).read_config()["architecture"]))


def _free(out: Path) -> Path:
    numbered = (out, *(out.with_name(f"{out.name}-{number}") for number in range(2, 10_000)))
    return next(path for path in numbered if not path.exists())


@app.command()
def evaluate(
    run: RunFolder,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    device: Device = "auto",
    crops: Annotated[int, typer.Option(help="Views of an image: 1, or 10 that are averaged.")] = 1,
    compile_: Annotated[bool, typer.Option("--compile", help="torch.compile; pays for very many images.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """Judge a run on its test images: top-1, top-5, by specialty, inside and across specialties."""
    from nofe.inference import evaluate_run
    from nofe.report.text import evaluation_in_words
    from nofe.training.runtime import make_runtime

    if trust_code:
        _trust_code_of(run)
    figures = evaluate_run(run, make_runtime(device, compile=compile_), data_root, crops)
    print(json.dumps(figures, indent=2) if as_json else evaluation_in_words(figures))


@app.command()
def predict(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 5,
    as_json: AsJson = False,
    device: Device = "auto",
    trust_code: TrustCode = False,
) -> None:
    """Name what is in a picture, how probable it is, and which expert spoke."""
    from nofe.inference import predict_files
    from nofe.report.text import predictions_in_words
    from nofe.training.runtime import make_runtime

    if trust_code:
        _trust_code_of(run)
    answers = predict_files(run, images, top, make_runtime(device))
    print(json.dumps(answers, indent=2) if as_json else predictions_in_words(answers))


@app.command()
def specialties(run: RunFolder, as_json: AsJson = False) -> None:
    """The classes of each expert."""
    from nofe import runs
    from nofe.report.text import specialties_in_words
    from nofe.runs import Run

    if as_json:
        print(json.dumps(Run(run).read_json(runs.SPECIALTIES), indent=2))
    else:
        print(specialties_in_words(run))


@app.command()
def report(run: RunFolder) -> None:
    """Write the page of a run again, report.html, and its figures."""
    from nofe import runs
    from nofe.errors import UserError
    from nofe.report.page import write_report
    from nofe.runs import Run

    if Run(run).has(runs.CONFIG) and (until := Run(run).read_config().get("until", "experts")) != "experts":
        raise UserError(
            f"{run}: has until={until}, and a page is of experts; see what there is with nofe evaluate {run}"
        )
    write_report(Run(run))
    print(f"{run / runs.REPORT} is written")


@app.command("list")
def list_() -> None:
    """Architectures, data sets, recipes and specialty rules."""
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


@app.command()
def pack(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A data set, see nofe list; or a folder.")],
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="Where shards and manifest go.")],
    size: Annotated[int, typer.Option(help="Pixels of the shorter side; smaller images stay so.")] = 256,
    square: Annotated[bool, typer.Option("--square", help="Keep the middle square alone.")] = False,
    quality: Annotated[int, typer.Option(help="Of the JPEGs, 1 to 100.")] = 90,
    shard_megabytes: Annotated[float, typer.Option(help="At most so much in a shard.")] = 256.0,
    workers: Annotated[int, typer.Option(help="Processes; 0 is one a core.")] = 0,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave such images out.")] = False,
    test: Annotated[str, typer.Option(help="Part held out where SRC has no test images.")] = "0.2",
    seed: Annotated[int, typer.Option(help="Draws them.")] = 0,
    data_root: Annotated[Path, typer.Option(help="Where data sets lie, or are downloaded to.")] = Path("data"),
) -> None:
    """Write any images as shards of small JPEGs, once. The same command again goes on after an interruption."""
    from nofe.data.pack import PackSettings, listing_of
    from nofe.data.pack import pack as write_shards
    from nofe.data.workers import Workers
    from nofe.training.progress import counting

    settings = PackSettings(size, square, quality, shard_megabytes)
    listing = listing_of(source, root=data_root, test=test, seed=seed)
    with counting("pack", sum(map(len, listing.parts.values()))) as advance:
        manifest = write_shards(
            listing, folder, settings, Workers(workers), skip_unreadable=skip_unreadable, advance=advance
        )
    counts = ", ".join(f"{count:,} {part}" for part, count in manifest["images"].items())
    left_out = sum(manifest["unreadable"].values())
    print(
        f"{folder}: {counts} images in {len(manifest['shards'])} shards, {left_out:,} unreadable; "
        f"nofe train --dataset shards:{folder}"
    )


bench_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench(
    context: typer.Context,
    architecture: Annotated[str, typer.Option(help="See nofe list.")] = "resnet56-c100",
    experts: Annotated[list[int], typer.Option(help="K; repeatable.")] = [10],  # noqa: B006
    classes: Annotated[list[int] | None, typer.Option(help="C; repeatable; 100, for the update 1,000.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images a step; repeatable; 128, on a processor 16.")] = None,
    network: Annotated[list[str] | None, typer.Option(help="base, loop, fused; all by default.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="eager, captured, compiled, compiled+captured.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="train, forward, inference; or update or losses, alone.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Of the losses: glyphs, cifar100 or cifar10.")] = "glyphs",
    data_root: DataRoot = None,
    rate: Annotated[float | None, typer.Option(help="Of the losses; by default the recipe's.")] = None,
    grow: Annotated[str | None, typer.Option(help="A table and a plot over the number of experts or classes.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="In which cases take turns.")] = 7,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="auto, bf16, tf32 or fp32.")] = "auto",
    kernels: Annotated[
        str, typer.Option(help="measure, known, together, loop, product, winograd, branches.")
    ] = "measure",
    out: Annotated[
        Path | None, typer.Option(help="Where to keep the table; by default benchmarks/results/DEVICE/.")
    ] = None,
) -> None:
    """Time base and experts side by side: steps, inference, updates. `bench data` times the way of the images."""
    if context.invoked_subcommand is not None:
        return
    from nofe.architectures.zoo import trust
    from nofe.bench.tables import keep, table_name
    from nofe.report.growth import growth_svg
    from nofe.report.text import timings_in_words, update_in_words
    from nofe.runs import write_atomically
    from nofe.training.runtime import make_runtime

    trust(architecture)
    runtime = make_runtime(device, precision, kernels=kernels)
    batches = batch or [128 if runtime.device.type == "cuda" else 16]
    if task == ["losses"]:
        from nofe.bench.losses import measure_first_losses
        from nofe.data import load_dataset
        from nofe.recipes import default_run
        from nofe.report.text import losses_in_words

        images = load_dataset(dataset, root=data_root or Path("data"), image_size=32)
        recipe = dataclasses.replace(default_run(architecture, dataset).experts, batch=batches[0])
        recipe = recipe if rate is None else dataclasses.replace(recipe, rate=rate)
        table = measure_first_losses(architecture, images, recipe, experts[0], runtime, mode)
        text, name = losses_in_words(table), f"{architecture}-losses-{runtime.precision}"
    elif task == ["update"]:
        from nofe.bench.update import measure_update, runtime_for

        chosen = runtime_for(mode, runtime)
        table = measure_update(architecture, (classes or [1000])[0], experts[0], batches[0], chosen, rounds)
        text, name = update_in_words(table), table_name(architecture, task, None, experts[0])
    else:
        from nofe.bench.cases import cases, growing
        from nofe.bench.steps import measure

        if grow is None:
            timed = cases(network, mode, task, experts, classes or [100], batches)
        else:
            timed = growing(grow, network, task, batches, runtime.device, experts[0], classes)
        table = measure(architecture, timed, runtime, rounds=rounds)
        text, name = timings_in_words(table), table_name(architecture, task, grow, experts[0])
    print(text)
    out = keep(table, name, runtime, out)
    if grow is not None:
        write_atomically(out.with_suffix(".svg"), growth_svg(table, grow))
    print(f"\nwrote {out}" + (f" and {out.with_suffix('.svg').name}" if grow else ""))


@bench_app.command("data")
def bench_data(
    dataset: Annotated[str, typer.Option(help="folder:PATH, shards:PATH or hf:PATH.")],
    architecture: Annotated[str, typer.Option(help="Whose image size to bring them to.")] = "alexnet-caffe",
    batch: Annotated[int, typer.Option(min=1, help="Images a step.")] = 128,
    images: Annotated[int, typer.Option(min=1, help="How many to look at, drawn from the training images.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Medians are taken over them.")] = 3,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode; 0 is one a core.")] = 0,
    experts: Annotated[int, typer.Option(min=0, help="Train so many on these images, too; 0 is none.")] = 0,
    precision: Annotated[str, typer.Option(help="Of the training: auto, bf16, tf32 or fp32.")] = "auto",
    compile_: Annotated[bool, typer.Option("--compile/--no-compile", help="torch.compile in the training.")] = False,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Where to keep the figures; by default benchmarks/results/DEVICE/.")
    ] = None,
) -> None:
    """Images a second of reading, decoding, resizing, copying and augmenting, and which of them is the limit."""
    from nofe.bench.data import measure_data
    from nofe.bench.tables import keep
    from nofe.report.text import data_in_words
    from nofe.training.runtime import make_runtime

    runtime = make_runtime(device, precision, compile=compile_, workers=workers)
    measured = measure_data(dataset, architecture, runtime, batch=batch, images=images, rounds=rounds, experts=experts)
    print(data_in_words(measured))
    kind = dataset.partition(":")[0]
    print(f"\nwrote {keep(measured, f'data-{kind}', runtime, out)}")


@bench_app.command("runs")
def bench_runs(
    architecture: Annotated[str, typer.Option(help="See nofe list.")] = "alexnet-c100",
    at_once: Annotated[list[int], typer.Option(help="Trainings at the same time; repeatable.")] = [1, 8],  # noqa: B006
    network: Annotated[list[str], typer.Option(help="base, loop, fused; repeatable.")] = ["base", "fused"],  # noqa: B006
    mode: Annotated[str | None, typer.Option(help="As of bench; the fastest by default.")] = None,
    experts: Annotated[int, typer.Option(min=1, help="K.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Images a step.")] = 100,
    share: Annotated[
        list[int] | None,
        typer.Option(min=1, max=100, help="Percent of the GPU that each may use, by NVIDIA's MPS; repeatable."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long they train together.")] = 3.0,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="auto, bf16, tf32 or fp32.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Where to keep the figures; by default benchmarks/results/DEVICE/.")
    ] = None,
) -> None:
    """What a step costs when several trainings share the device."""
    from nofe.bench.runs import ProcessOptions, measure_runs
    from nofe.bench.tables import keep
    from nofe.report.text import runs_in_words
    from nofe.training.runtime import make_runtime

    options = ProcessOptions(device, precision)
    measured = measure_runs(architecture, network, mode, experts, batch, at_once, options, seconds, share)
    print(runs_in_words(measured))
    print(f"\nwrote {keep(measured, f'{architecture}-runs-at-once', make_runtime(device), out)}")


@app.command()
def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="See --list; or all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Every table and figure: rows, cost, state.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many: 0, 1, ...")] = 3,
    minutes: Minutes = None,
    side_by_side: Annotated[int, typer.Option(min=1, help="Runs at a time on the device.")] = 8,
    data_root: Annotated[Path, typer.Option(help="Where CIFAR-100 lies, or is downloaded to.")] = Path("data"),
    work: Annotated[Path, typer.Option(help="Folders of the runs.")] = Path("runs/reproduce"),
    folder: Annotated[Path, typer.Option(help="One JSON file for each finished run, by device.")] = Path("results"),
    dataset: Annotated[
        str | None, typer.Option(help="ImageNet: folder:PATH or shards:PATH; by default folder:DATA_ROOT/imagenet.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Experiments whose name contains this.")] = None,
    device: Device = "auto",
    compile_: Compile = None,
) -> None:
    """Train what is missing of the paper's tables, and print them beside the paper's."""
    from dataclasses import replace

    from nofe.data import is_listed
    from nofe.errors import RunError, UserError
    from nofe.experiments import page
    from nofe.experiments.costs import growth_in
    from nofe.experiments.reproduce import Workshop, missing
    from nofe.experiments.reproduce import reproduce as run_all
    from nofe.experiments.results import results_in
    from nofe.experiments.tables import TABLES, experiments_of, on_data, tables_named

    if list_:
        listed = tables_named(tables) if tables else list(TABLES.values())
        print(page.overview(listed, seeds, results_in(folder), growth_in(Path("benchmarks/results"))))
        return
    if not tables:
        raise UserError("reproduce: no table is named; see nofe reproduce --list, or name all")
    chosen = tables_named(tables)
    experiments = [each for each in experiments_of(chosen) if only is None or only in each.name]
    if not experiments:
        raise UserError(f"--only {only}: no experiment of these tables has this in its name; see --list")
    imagenet = dataset or f"folder:{data_root / 'imagenet'}"
    if not is_listed(imagenet):
        raise UserError(f"--dataset {imagenet}: says where ImageNet lies; write folder:PATH or shards:PATH")
    jobs = [
        replace(job, experiment=on_data(job.experiment, imagenet))
        for job in missing(experiments, seeds, results_in(folder))
    ]
    print(f"{len(jobs)} runs are missing")
    workshop = Workshop(work, folder, data_root, device, compile_)
    outcome = run_all(jobs, workshop, side_by_side=side_by_side, minutes=minutes) if jobs else None
    found = results_in(folder)
    for table in chosen:
        print(f"\n{page.table_in_words(table, found)}")
    if outcome and (unfinished := outcome.in_words()):
        advice = "" if outcome.failed else "; run the command again to go on"
        raise RunError(f"reproduce: {unfinished}{advice}")


@app.command()
def results(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="Finished runs to file.")] = None,
    folder: Annotated[Path, typer.Option(help="One JSON file for each run, by device.")] = Path("results"),
    page: Annotated[Path, typer.Option(help="Made from these files alone.")] = Path("docs/results.md"),
    benchmarks: Annotated[
        Path, typer.Option(help="What nofe bench wrote; speed.md beside the page is made of it.")
    ] = Path("benchmarks/results"),
) -> None:
    """File the figures of finished runs, and write the pages of results and of speed, and README's table, anew."""
    from nofe.experiments.index import Index
    from nofe.experiments.markdown import results_page
    from nofe.experiments.pictures import pictures
    from nofe.experiments.readme import comparison_table, with_table
    from nofe.experiments.results import file_result, read_results
    from nofe.report.speed import speed_page
    from nofe.runs import Run, write_atomically

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
    if benchmarks.is_dir():
        speed = page.with_name("speed.md")
        write_atomically(speed, speed_page(benchmarks).encode())
        print(f"wrote {speed}")
