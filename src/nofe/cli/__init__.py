"""The command line: a few verbs; every other field of the configuration is reached by --set.

What a verb needs is imported when it is called: `nofe --help` does not wait for torch.
"""

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from nofe.cli.bench import bench_app
from nofe.cli.data import pack
from nofe.cli.experiments import reproduce, results, sweep
from nofe.cli.options import expanding_home
from nofe.cli.runs import evaluate, export, predict, report, specialties
from nofe.cli.training import list_, train

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Turn an image classifier into a network of experts: one trunk, K branches, one softmax.",
)


def _say_versions(is_asked: bool) -> None:
    """Print the versions that the report of a bug should name."""
    if not is_asked:
        return
    said = []
    for package in ("nofe", "torch"):
        try:
            said.append(f"{package} {version_of(package)}")
        except PackageNotFoundError:  # run from its sources
            said.append(f"{package}, not installed")
    typer.echo(", ".join([*said, f"Python {platform.python_version()}"]))
    raise typer.Exit


@app.callback()
def _before_every_verb(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_versions, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


MEASURE = "Measure and reproduce"
VERBS: dict[str, dict[str, Callable[..., None]]] = {  # by their group in the help
    "Train": {"train": train, "sweep": sweep, "pack": pack, "list": list_},
    "Use a run": {
        "evaluate": evaluate,
        "predict": predict,
        "specialties": specialties,
        "report": report,
        "export": export,
    },
    MEASURE: {"reproduce": reproduce, "results": results},
}
for panel, verbs in VERBS.items():
    for name, verb in verbs.items():
        app.command(name, rich_help_panel=panel)(expanding_home(verb))
app.add_typer(bench_app, name="bench", rich_help_panel=MEASURE)
