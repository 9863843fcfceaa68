"""Photo-like JPEGs in ImageNet's layout, to measure what reading and training on it would cost.

    python benchmarks/photos.py DEST --per-class 20
    nofe pack DEST DEST-256 --size 256
    nofe bench data --dataset shards:DEST-256 --experts 10 --images 16384 --batch 256

writes DEST/train/n01440764/0.JPEG and so on, 500 x 375 pixels and about 100 KB each, for classes named by real synsets,
and one image a class under DEST/val. What is on them means nothing: clouds of colour at several scales, whose spectrum,
and so the work of decoding them, is like that of a photo.
"""

import argparse
import multiprocessing
from pathlib import Path

import numpy as np
from PIL import Image

from nofe.data.workers import cores
from nofe.specialties.wordnet import hypernyms

WIDTH, HEIGHT, QUALITY = 500, 375, 94
SCALES = (4, 8, 16, 32, 64, 128, 256)  # pixels across the shorter side; a photo has about as much of each


def photo(rng: np.random.Generator) -> Image.Image:
    total = np.zeros((HEIGHT, WIDTH, 3), dtype=np.float32)
    for scale in SCALES:
        small = rng.integers(0, 256, (scale, scale * WIDTH // HEIGHT, 3), dtype=np.uint8)
        clouds = Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        total += (np.asarray(clouds, dtype=np.float32) - 128) * scale**-0.5
    grain = rng.normal(0, 6, total.shape)  # of the sensor
    return Image.fromarray(np.clip(total * 1.4 + 128 + grain, 0, 255).astype(np.uint8))


def write_class(task: tuple[Path, str, int, int]) -> int:
    root, name, number, count = task
    rng = np.random.default_rng(number)
    written = 0
    for part, images in (("train", count), ("val", 1)):
        folder = root / part / name
        folder.mkdir(parents=True, exist_ok=True)
        for image in range(images):
            photo(rng).save(folder / f"{image}.JPEG", quality=QUALITY)
            written += (folder / f"{image}.JPEG").stat().st_size
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--per-class", type=int, default=20)
    chosen = parser.parse_args()
    names = sorted(hypernyms())[: chosen.classes]
    tasks = [(chosen.dest, name, number, chosen.per_class) for number, name in enumerate(names)]
    with multiprocessing.Pool(cores()) as pool:
        written = sum(pool.imap_unordered(write_class, tasks, chunksize=4))
    images = len(names) * (chosen.per_class + 1)
    print(f"{chosen.dest}: {images:,} images of {len(names):,} classes, {written / images / 1000:.0f} KB each")


if __name__ == "__main__":
    main()
