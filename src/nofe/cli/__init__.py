"""The command line: a few verbs; every other field of the configuration is reached by --set.

What a verb needs is imported when it is called: `nofe --help` does not wait for torch.
"""

from collections.abc import Callable

import typer

from nofe.cli.bench import bench_app
from nofe.cli.data import pack
from nofe.cli.experiments import reproduce, results, sweep
from nofe.cli.runs import evaluate, predict, report, specialties
from nofe.cli.training import list_, train

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Turn an image classifier into a network of experts: one trunk, K branches, one softmax.",
)

VERBS: dict[str, Callable[..., None]] = {
    "train": train,
    "sweep": sweep,
    "evaluate": evaluate,
    "predict": predict,
    "specialties": specialties,
    "report": report,
    "list": list_,
    "pack": pack,
    "reproduce": reproduce,
    "results": results,
}
for name, verb in VERBS.items():
    app.command(name)(verb)
app.add_typer(bench_app, name="bench")
