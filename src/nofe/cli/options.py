"""Options that several commands have."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nofe.files import expand_home
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
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Start from the library's weights.")]
WeightsFile = Annotated[Path | None, typer.Option("--weights", help="Start from the weights in this file.")]
FrozenTrunk = Annotated[bool, typer.Option("--frozen-trunk", help="Train heads and branches alone.")]
Cut = Annotated[str | None, typer.Option(help="Experts begin with this layer.")]
BranchWidth = Annotated[float | None, typer.Option(help="Of the layers inside a branch; 1 is full.")]
Parameters = Annotated[int | None, typer.Option(help="Narrow the branches to so many in all.")]
SkipUnreadable = Annotated[bool, typer.Option("--skip-unreadable", help="Leave such images out.")]
Minutes = Annotated[float | None, typer.Option("--minutes", help="Stop after this time; go on with the same command.")]


def expanding_home(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ~ expanded in every path: shells leave it alone in --out=~/run and in quotes."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(**{name: _with_home(value) for name, value in given.items()})

    return called


def _with_home(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_home(each) for each in value]
    return expand_home(value) if isinstance(value, Path) else value


def data_settings(dataset: str | None, data_root: Path | None, skip_unreadable: bool) -> dict[str, Any]:
    """What these options say, by the fields of the configuration; None where they say nothing."""
    if dataset is not None and data_root is not None:
        from nofe.data import require_root_is_read

        require_root_is_read(dataset, data_root)
    return {
        "data.name": dataset,
        "data.root": None if data_root is None else str(data_root),
        "data.skip_unreadable": True if skip_unreadable else None,
    }


def network_settings(
    pretrained: bool,
    weights: Path | None,
    frozen_trunk: bool,
    cut: str | None,
    branch_width: float | None,
    parameters: int | None,
) -> dict[str, Any]:
    """Likewise."""
    return {
        "adapt.weights": _source_of_weights(pretrained, weights),
        "adapt.frozen_trunk": True if frozen_trunk else None,
        "adapt.cut": cut,
        "adapt.branch_width": branch_width,
        "adapt.parameters": parameters,
    }


def _source_of_weights(pretrained: bool, weights: Path | None) -> str | None:
    if pretrained and weights is not None:
        from nofe.errors import UserError

        raise UserError(f"--pretrained and --weights {weights}: two sources of weights; give one of them")
    return "pretrained" if pretrained else None if weights is None else str(weights)
