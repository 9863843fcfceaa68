"""`nofe pack`: images as shards."""

from pathlib import Path
from typing import Annotated

import typer


def pack(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A data set (see nofe list) or a folder of images.")],
    folder: Annotated[Path, typer.Argument(metavar="DEST", help="Folder for the shards and their manifest.")],
    size: Annotated[int, typer.Option(help="Pixels of the shorter side; images are never enlarged.")] = 256,
    square: Annotated[bool, typer.Option("--square", help="Keep only the middle square.")] = False,
    quality: Annotated[int, typer.Option(help="JPEG quality, 1 to 100.")] = 90,
    shard_megabytes: Annotated[float, typer.Option(help="Largest size of a shard.")] = 256.0,
    workers: Annotated[int, typer.Option(help="Processes; 0 is one per core.")] = 0,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave unreadable images out.")] = False,
    test: Annotated[str, typer.Option(help="Share held out for testing, where SRC has no test images.")] = "0.2",
    seed: Annotated[int, typer.Option(help="Seed that draws the held-out images.")] = 0,
    data_root: Annotated[Path, typer.Option(help="Folder that holds CIFAR, or to download it to.")] = Path("data"),
) -> None:
    """Write images as shards of small JPEGs.

    After an interruption the same command continues.
    """
    from nofe.data.pack import PackSettings, listing_of
    from nofe.data.pack import pack as write_shards
    from nofe.data.workers import Workers
    from nofe.suggestions import counted
    from nofe.training.progress import counting

    settings = PackSettings(size, square, quality, shard_megabytes)
    listing = listing_of(source, root=data_root, test=test, seed=seed)
    with counting("pack", sum(map(len, listing.parts.values()))) as images:
        manifest = write_shards(
            listing,
            folder,
            settings,
            Workers(workers),
            skip_unreadable=skip_unreadable,
            advance=images.advance,
            take_over=images.take_over,
        )
    counts = ", ".join(f"{count:,} {part}" for part, count in manifest["images"].items())
    left_out = sum(manifest["unreadable"].values())
    print(
        f"{folder}: {counts} images in {counted(len(manifest['shards']), 'shard')}, {left_out:,} unreadable; "
        f"nofe train --dataset shards:{folder}"
    )
