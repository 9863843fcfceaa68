"""Options that several commands have."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nofe.files import expand_home
from nofe.suggestions import either
from nofe.training.names import DEVICES, KERNELS, PRECISIONS


def one_of(names: Sequence[str]) -> str:
    return f"{either(names)}."


# Groups of options in the help of a command.
DATA, NETWORK, EXPERTS, TRAINING, RUN, SPEED = "Data", "Network", "Experts", "Training", "Run folder", "Speed"

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help=one_of(DEVICES), rich_help_panel=SPEED)]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Allow the code of a python: architecture to run.")]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder that holds CIFAR, or to download it to.", rich_help_panel=DATA)
]
DatasetName = Annotated[
    str | None,
    typer.Option(
        "--dataset", help="glyphs, cifar100, folder:PATH, shards:PATH, ...; see nofe list.", rich_help_panel=DATA
    ),
]
ArchitectureName = Annotated[
    str | None,
    typer.Option(
        "--architecture",
        help="resnet56-c100, timm:NAME, torchvision:NAME, ...; see nofe list.",
        rich_help_panel=NETWORK,
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", help="Recipe for base, generalist and experts; see nofe list.", rich_help_panel=TRAINING),
]
Bases = Annotated[
    str | None,
    typer.Option(
        "--base",
        help="Recipe of the base to compare with: experts (the same), paper, both or none.",
        rich_help_panel=TRAINING,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set any field of the configuration, e.g. generalist.epochs=5. Repeatable.",
        rich_help_panel=TRAINING,
    ),
]
Precision = Annotated[str | None, typer.Option("--precision", help=one_of(PRECISIONS), rich_help_panel=SPEED)]
Kernels = Annotated[
    str,
    typer.Option(
        help=f"How fused experts run: {one_of(KERNELS)} measure times them and picks the fastest.",
        rich_help_panel=SPEED,
    ),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Use torch.compile; by default on CUDA, where a stage is long enough.",
        rich_help_panel=SPEED,
    ),
]
Pretrained = Annotated[
    bool,
    typer.Option("--pretrained", help="Start from timm's or torchvision's trained weights.", rich_help_panel=NETWORK),
]
WeightsFile = Annotated[
    Path | None, typer.Option("--weights", help="Start from the weights in this file.", rich_help_panel=NETWORK)
]
FrozenTrunk = Annotated[
    bool,
    typer.Option("--frozen-trunk", help="Keep the trunk as it is; train heads and branches.", rich_help_panel=NETWORK),
]
Cut = Annotated[
    str | None,
    typer.Option(help="Layer at which the experts begin; by default after the last block.", rich_help_panel=EXPERTS),
]
BranchWidth = Annotated[
    float | None, typer.Option(help="Width of the layers inside a branch; 1 is full.", rich_help_panel=EXPERTS)
]
Parameters = Annotated[
    int | None, typer.Option(help="Narrow the branches to fit this many parameters in all.", rich_help_panel=EXPERTS)
]
SkipUnreadable = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Leave unreadable images out instead of stopping.", rich_help_panel=DATA),
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", min=0, help="Stop after this long; the same command continues later.")
]


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
    """The same of the options of the network."""
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
