"""Options that several commands have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nofe.training.names import DEVICES, KERNELS, PRECISIONS


def one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}."


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help=one_of(DEVICES))]
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
Precision = Annotated[str | None, typer.Option("--precision", help=one_of(PRECISIONS))]
Kernels = Annotated[str, typer.Option(help=f"{', '.join(KERNELS)}.")]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile.")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Stop after this time; go on with the same command.")]
