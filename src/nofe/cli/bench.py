"""`nofe bench`: what is measured, and where it is kept."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nofe.cli.options import DATA, SPEED, DataRoot, Device, Kernels, expanding_home, one_of
from nofe.training.names import PRECISIONS

if TYPE_CHECKING:
    from nofe.training.runtime import Runtime

Figures = Annotated[Path | None, typer.Option(help="JSON file to write; by default in benchmarks/results/DEVICE/.")]

bench_app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")


@bench_app.callback()
@expanding_home
def bench(
    context: typer.Context,
    architecture: Annotated[str, typer.Option(help="See nofe list.")] = "resnet56-c100",
    experts: Annotated[list[int] | None, typer.Option(help="K, by default 10. Repeatable.")] = None,
    classes: Annotated[
        list[int] | None, typer.Option(help="C, by default 100; 1,000 for --task update. Repeatable.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Images per step, by default 128; 16 on a CPU. Repeatable.")
    ] = None,
    network: Annotated[
        list[str] | None, typer.Option(help="base, loop or fused; all by default. With --task losses: base or experts.")
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="eager, captured, compiled or compiled+captured. Repeatable.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="train, forward or inference, repeatable; or update or losses alone.")
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="For --task losses: glyphs, cifar100 or cifar10.", rich_help_panel=DATA)
    ] = "glyphs",
    data_root: DataRoot = None,
    rate: Annotated[
        float | None, typer.Option(help="Learning rate for --task losses; by default the recipe's.")
    ] = None,
    grow: Annotated[str | None, typer.Option(help="experts or classes: a table and a plot over their number.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which the cases take turns.")] = 7,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help=one_of(PRECISIONS), rich_help_panel=SPEED)] = "auto",
    kernels: Kernels = "measure",
    out: Figures = None,
) -> None:
    """Time base and experts side by side: training steps, inference, updates of the specialties."""
    if context.invoked_subcommand is not None:
        return
    from nofe.architectures.zoo import trust
    from nofe.bench.cases import DEFAULT_CLASSES, DEFAULT_EXPERTS
    from nofe.bench.tables import table_name
    from nofe.errors import UserError
    from nofe.report.measured import losses_in_words, timings_in_words, update_in_words
    from nofe.training.runtime import make_runtime

    trust(architecture)
    runtime = make_runtime(device, precision, kernels=kernels)
    counts = experts or [DEFAULT_EXPERTS]
    batches = batch or [128 if runtime.device.type == "cuda" else 16]
    if task in (["losses"], ["update"]) and len(counts) > 1:
        raise UserError(f"--experts {counts[1]}: --task {task[0]} is for one K at a time; name one")
    if task == ["losses"]:
        from nofe.bench.losses import measure_first_losses
        from nofe.data import load_dataset
        from nofe.recipes import default_run

        if network and len(network) > 1:
            raise UserError(f"--network {network[1]}: losses are of one network at a time; name base or experts")
        images = load_dataset(dataset, root=data_root or Path("data"), image_size=32)
        recipe = dataclasses.replace(default_run(architecture, dataset).experts, batch=batches[0])
        recipe = recipe if rate is None else dataclasses.replace(recipe, rate=rate)
        compared = network[0] if network else "experts"
        table = measure_first_losses(architecture, images, recipe, counts[0], runtime, mode, network=compared)
        name = f"{architecture}-losses-{runtime.precision}{'-base' * (compared == 'base')}"
        text = losses_in_words(table)
    elif task == ["update"]:
        from nofe.bench.update import measure_update, runtime_for

        chosen = runtime_for(mode, runtime)
        table = measure_update(architecture, (classes or [1000])[0], counts[0], batches[0], chosen, rounds)
        text, name = update_in_words(table), table_name(architecture, task, None, counts)
    else:
        from nofe.bench.cases import cases, growing
        from nofe.bench.steps import measure

        if grow is None:
            timed = cases(network, mode, task, counts, classes or [DEFAULT_CLASSES], batches)
        else:
            timed = growing(grow, network, mode, task, experts, classes, batches, runtime.device)
        table = measure(architecture, timed, runtime, rounds=rounds)
        text, name = timings_in_words(table), table_name(architecture, task, grow, counts)
    print(text)
    _keep(table, name, runtime, out, grow)


@bench_app.command("data")
@expanding_home
def bench_data(
    dataset: Annotated[str, typer.Option(help="folder:PATH, shards:PATH or hf:PATH.")],
    architecture: Annotated[str, typer.Option(help="Network whose image size they are resized to.")] = "alexnet-caffe",
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 128,
    images: Annotated[int, typer.Option(min=1, help="Number of training images to time.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the median is taken.")] = 3,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode; 0 is one per core.")] = 0,
    experts: Annotated[int, typer.Option(min=0, help="Also time the training of this many experts; 0 is none.")] = 0,
    precision: Annotated[str, typer.Option(help=f"Precision of the training: {one_of(PRECISIONS)}")] = "auto",
    compile_: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Use torch.compile in the training.")
    ] = False,
    device: Device = "auto",
    out: Figures = None,
) -> None:
    """Images per second of each step from disk to device, and which one is the limit."""
    from nofe.bench.data import measure_data
    from nofe.report.measured import data_in_words
    from nofe.training.runtime import make_runtime

    runtime = make_runtime(device, precision, compile=compile_, workers=workers)
    measured = measure_data(dataset, architecture, runtime, batch=batch, images=images, rounds=rounds, experts=experts)
    print(data_in_words(measured))
    _keep(measured, f"data-{dataset.partition(':')[0]}{'-compiled' * compile_}", runtime, out)


@bench_app.command("runs")
@expanding_home
def bench_runs(
    architecture: Annotated[str, typer.Option(help="See nofe list.")] = "alexnet-c100",
    at_once: Annotated[list[int], typer.Option(help="Trainings at the same time. Repeatable.")] = [1, 8],  # noqa: B006
    network: Annotated[list[str], typer.Option(help="base, loop or fused. Repeatable.")] = ["base", "fused"],  # noqa: B006
    mode: Annotated[str | None, typer.Option(help="As for nofe bench; by default the fastest.")] = None,
    experts: Annotated[int, typer.Option(min=1, help="K.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 100,
    share: Annotated[
        list[int] | None,
        typer.Option(min=1, max=100, help="Per cent of the GPU for each, by NVIDIA's MPS. Repeatable."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to time them.")] = 3.0,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help=one_of(PRECISIONS), rich_help_panel=SPEED)] = "auto",
    out: Figures = None,
) -> None:
    """Time a training step while several trainings share the device."""
    from nofe.bench.runs import ProcessOptions, measure_runs
    from nofe.report.measured import runs_in_words
    from nofe.training.runtime import make_runtime

    options = ProcessOptions(device, precision)
    measured = measure_runs(architecture, network, mode, experts, batch, at_once, options, seconds, share)
    print(runs_in_words(measured))
    _keep(measured, f"{architecture}-runs-at-once", make_runtime(device), out)


def _keep(table: dict[str, Any], name: str, runtime: "Runtime", out: Path | None, grow: str | None = None) -> None:
    """Write the table as JSON, to `out` or by its name to the device's results; with `grow` also a plot of it."""
    from nofe.bench.tables import keep

    file = keep(table, name, runtime, out)
    written = f"{file}"
    if grow is not None:
        from nofe.report.growth import growth_svg
        from nofe.runs import write_atomically

        plot = file.with_suffix(".svg")
        write_atomically(plot, growth_svg(table, grow))
        written += f" and {plot.name}"
    print(f"\nwrote {written}")
