"""Commands for a run that is trained."""

import json
from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer

from nofe.cli.options import SPEED, AsJson, DataRoot, Device, RunFolder, TrustCode, one_of
from nofe.training.names import PRECISIONS

PrecisionToAnswer = Annotated[
    str | None,
    typer.Option("--precision", help=f"By default the run's: {one_of(PRECISIONS)}", rich_help_panel=SPEED),
]
CompileToAnswer = Annotated[
    bool, typer.Option("--compile", help="Use torch.compile; worth it for very many images.", rich_help_panel=SPEED)
]


def evaluate(
    run: RunFolder,
    dataset: Annotated[
        str | None, typer.Option(help="Where the run's images are now, or other labelled images: folder:PATH, ...")
    ] = None,
    data_root: DataRoot = None,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave unreadable images out.")] = False,
    as_json: AsJson = False,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write what each network says of each image, as CSV."),
    ] = None,
    device: Device = "auto",
    crops: Annotated[int, typer.Option(help="Crops per image: 1, or 10 whose predictions are averaged.")] = 1,
    precision: PrecisionToAnswer = None,
    compile_: CompileToAnswer = False,
    trust_code: TrustCode = False,
) -> None:
    """Accuracy on the test images: top-1, top-5, by specialty, and against the base."""
    from nofe.inference import evaluate_run
    from nofe.judging import Place
    from nofe.report.text import evaluation_in_words
    from nofe.training.runtime import make_runtime

    if trust_code:
        _trust_code_of(run)
    place = Place(dataset, data_root, skip_unreadable)
    runtime = make_runtime(device, precision or "auto", compile=compile_)
    figures = evaluate_run(run, runtime, place, crops, precision, answers)
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    if figures["other_data"]:
        what = "all of its images, as it has no test part" if figures["all_images"] else "its test images"
        print(
            f"Other data than the run's: {figures['dataset']}, {what}. If the run was trained on some, they flatter it."
        )
    print(evaluation_in_words(figures))
    if answers is not None:
        print(f"\n{answers} has the answers for each image")


def predict(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to list.")] = 5,
    as_json: AsJson = False,
    device: Device = "auto",
    precision: PrecisionToAnswer = None,
    compile_: CompileToAnswer = False,
    trust_code: TrustCode = False,
) -> None:
    """Classify images: the most probable classes, and the expert that owns each."""
    from nofe.data.decode import FORMAT_LIST
    from nofe.errors import UserError
    from nofe.inference import predict_files
    from nofe.report.text import prediction_in_words
    from nofe.training.runtime import make_runtime

    if trust_code:
        _trust_code_of(run)
    files, unreadable = 0, []
    runtime = make_runtime(device, precision or "auto", compile=compile_)
    for answer in predict_files(run, images, top, runtime, precision):  # shown one by one: there may be many
        if as_json:
            print(",\n" if files else "[\n", indent(json.dumps(answer, indent=2), "  "), sep="", end="", flush=True)
        else:
            print("\n" if files else "", prediction_in_words(answer), sep="", flush=True)
        files += 1
        if "error" in answer:
            unreadable.append(answer)
    if as_json:
        print("\n]")
    if unreadable:
        first = f"{unreadable[0]['file']}, {unreadable[0]['error']}"
        are_there = any(Path(answer["file"]).exists() for answer in unreadable)
        advice = f"repair them, or give {FORMAT_LIST} files" if are_there else "check the paths"
        raise UserError(f"{len(unreadable):,} of {files:,} files cannot be read as images (first: {first}); {advice}")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: NAME.onnx, or NAME.pt2 for torch.export.")],
    trust_code: TrustCode = False,
) -> None:
    """Write the network as one file that runs without nofe."""
    from nofe.export import export_run

    if trust_code:
        _trust_code_of(run)
    made = export_run(run, out)
    print(f"{made.file} is written; {made.about} says what it reads and gives")
    if made.compared_by is None:
        print("It was not run: with the package onnxruntime it is compared with the network first.")
    if made.needs:
        print(f"It has operators of {' and '.join(made.needs)}: import what defines them before it is loaded.")


def specialties(run: RunFolder, as_json: AsJson = False) -> None:
    """List the classes of each expert."""
    from nofe import runs
    from nofe.report.text import specialties_in_words
    from nofe.runs import Run

    if as_json:
        print(json.dumps(Run(run).read_json(runs.SPECIALTIES), indent=2))
    else:
        print(specialties_in_words(run))


def report(run: RunFolder) -> None:
    """Write report.html and the figures of a run again."""
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


def _trust_code_of(run: Path) -> None:
    from nofe.architectures.zoo import trust
    from nofe.loading import open_finished

    trust(open_finished(run).config.architecture)
