"""`shards:PATH`: images in tar files, each read by its place without scanning the rest.

    PATH/train-000000.tar ...  PATH/test-000000.tar ...   (or val-, valid-, validation-)
    PATH/classes.txt      a class a line, in the order of their numbers; or index.json, or what `nofe pack` writes

Without test shards a part is held out, as for a folder.
"""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nofe.data.image_files import MAX_TEXT_BYTES, read_lines
from nofe.data.layouts import TEST_FOLDERS
from nofe.data.pictures import DEFAULT_TEST, NOTHING_HELD_OUT, OF_RUN, Listing, Ranges, Spelling
from nofe.data.tar_index import ShardIndex, shard_index
from nofe.errors import UserError
from nofe.suggestions import counted

logger = logging.getLogger("nofe")

MANIFEST, CLASSES, INDEX = "manifest.json", "classes.txt", "index.json"
MAX_CLASSES = 1_000_000


def list_shards(path: Path, *, test: str = DEFAULT_TEST, seed: int = 0, spelt: Spelling = OF_RUN) -> Listing:
    """Every image of the shards in a folder."""
    if not path.is_dir():
        reason = "not a folder" if path.exists() else "no such folder"
        raise UserError(f"{path}: {reason}; name one that holds train-000000.tar and so on")
    shards = _find_shards(path)
    manifest = read_manifest(path)
    if manifest is not None and not manifest.get("complete"):
        raise UserError(f"{path}: is not packed to its end; go on with the same nofe pack command")
    _require_all(path, manifest)
    indices = {part: [shard_index(shard) for shard in files] for part, files in shards.items()}
    every_label = np.concatenate([index.labels for part in indices.values() for index in part])
    _require_none_below_zero(path, np.unique(every_label).tolist())
    class_names = _class_names(path, manifest, every_label, to_train_on=test != NOTHING_HELD_OUT)
    number_of = _numbers(path, class_names, np.unique(every_label).tolist(), is_packed=manifest is not None)
    parts = {part: _pictures(files, indices[part], number_of, manifest) for part, files in shards.items()}
    for part, pictures in parts.items():
        if not len(pictures):
            raise UserError(f"{path}: its {part} shards hold no images; pack them again")
    mean = (manifest or {}).get("channel_mean")
    listing = Listing(
        f"shards:{path}",
        str(path),
        class_names,
        parts["train"],
        parts.get("test"),
        _groups(manifest, len(class_names)),
        None if mean is None else (float(mean[0]), float(mean[1]), float(mean[2])),
        _class_ids(manifest, len(class_names)),
    )
    return listing.with_test(test, seed, logger.warning, spelt)


def _find_shards(path: Path) -> dict[str, list[Path]]:
    """By part. Shards whose names tell no part are training shards, if all are so."""
    tars = sorted(entry for entry in path.iterdir() if entry.suffix == ".tar" and not entry.name.startswith("."))
    if not tars:
        packed = next((entry.name for entry in path.iterdir() if re.search(r"\.(tar\.\w+|tgz)$", entry.name)), None)
        reason = f"{packed} is compressed; unpack it with gunzip" if packed else "make some with nofe pack"
        raise UserError(f"{path}: holds no .tar files; {reason}")
    found: dict[str, list[Path]] = {}
    for tar in tars:
        found.setdefault(re.split(r"[-_.]", tar.name)[0].lower(), []).append(tar)
    judged = next((name for name in TEST_FOLDERS if name in found), None)
    if "train" not in found:
        if judged is not None:
            raise UserError(f"{path}: has no train-*.tar; put the training shards beside {found[judged][0].name}")
        return {"train": tars}
    unknown = found.keys() - {"train", *TEST_FOLDERS}
    if unknown:
        raise UserError(
            f"{found[min(unknown)][0]}: neither train-*.tar nor {', '.join(TEST_FOLDERS)}-*.tar; rename or remove it"
        )
    for other in sorted(found.keys() - {"train", judged}):
        logger.warning(
            "%s: tests on %s-*.tar and does not read %s; to test on that instead, move %s-*.tar elsewhere",
            path,
            judged,
            f"{other}-*.tar ({counted(len(found[other]), 'shard')})",
            judged,
        )
    return {"train": found["train"]} | ({"test": found[judged]} if judged else {})


def read_manifest(path: Path) -> dict[str, Any] | None:
    """What `nofe pack` wrote; None for shards of another origin."""
    if not (path / MANIFEST).is_file():
        return None
    manifest = _read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or not {"shards", "source", "settings"} <= manifest.keys():
        return None  # somebody else's file of the same name
    if not isinstance(manifest["shards"], list) or not isinstance(manifest.get("classes"), list):
        raise UserError(f"{path / MANIFEST}: not as nofe pack writes it; pack again into an empty folder")
    return manifest


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise UserError(f"{path}: larger than {MAX_TEXT_BYTES:,} bytes; check the file")
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); put the right file there") from error


def _class_names(
    path: Path, manifest: dict[str, Any] | None, labels: NDArray[np.str_], *, to_train_on: bool
) -> tuple[str, ...]:
    """As the shards name them; else by number, of which all must be there to train on, and any will do to judge by."""
    if manifest is not None:
        return tuple(str(name) for name in manifest["classes"])
    if (path / CLASSES).is_file():
        return tuple(line.strip() for line in read_lines(path / CLASSES) if line.strip())
    if (path / INDEX).is_file():
        return _of_index(path / INDEX)
    distinct = np.unique(labels)
    if not all(label.isdecimal() for label in distinct.tolist()):
        return tuple(distinct.tolist())
    largest = max((int(label) for label in distinct.tolist()), default=0)
    if to_train_on:
        _require_count_from_zero(path, distinct.tolist())
    if largest >= MAX_CLASSES:
        raise UserError(f"{path}: a label is {largest:,}; list the classes in {path / CLASSES}")
    return tuple(f"class {number}" for number in range(largest + 1))


def _require_count_from_zero(where: Path, labels: Sequence[str]) -> None:
    """Of labels that are numbers."""
    if labels and all(label.isdecimal() for label in labels) and (lowest := min(map(int, labels))) > 0:
        raise UserError(
            f"{where}: labels must start at 0, and the lowest is {lowest:,}; subtract {lowest:,} from each, or use "
            "the names of classes as labels"
        )


def _require_none_below_zero(path: Path, labels: Sequence[str]) -> None:
    """Of labels that are numbers: -1 is what images without a class are often given, and no name of one."""
    if all(re.fullmatch(r"-?\d+", label) for label in labels) and (lowest := min(map(int, labels), default=0)) < 0:
        raise UserError(
            f"{path}: label {lowest} is below 0; number the classes from 0, and leave out images without a class"
        )


def _of_index(path: Path) -> tuple[str, ...]:
    """["ant", "bee"], {"classes": [...]}, {"ant": 0, "bee": 1} or {"0": "ant", "1": "bee"}."""
    value = _read_json(path)
    if isinstance(value, dict) and isinstance(value.get("classes"), list | dict):
        value = value["classes"]
    if isinstance(value, dict):
        by_number = {int(k): v for k, v in value.items() if isinstance(v, str) and k.isdecimal()}
        by_number |= {v: k for k, v in value.items() if isinstance(v, int)}
        value = [by_number.get(number) for number in range(len(value))]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UserError(f'{path}: names no classes; write ["ant", "bee", ...] in the order of their numbers')
    return tuple(value)


def _numbers(path: Path, class_names: Sequence[str], labels: Sequence[str], *, is_packed: bool) -> dict[str, int]:
    """The class of each label, which is its number or its name; `nofe pack` writes numbers, whatever the names are."""
    by_number = {str(number): number for number in range(len(class_names))}
    if is_packed:
        return by_number
    by_name = {name: number for number, name in enumerate(class_names)}
    fits_both = all(label in by_name and label in by_number for label in labels)
    differing = [label for label in labels if fits_both and by_name[label] != by_number[label]]
    if differing:
        raise UserError(
            f"{path}: label {differing[0]!r} could be the number of a class or the name of another; give the classes "
            f"names that are no numbers, in {path / CLASSES}"
        )
    if all(label in by_number for label in labels):
        return by_number
    return by_number | by_name


def _pictures(
    files: Sequence[Path], indices: Sequence[ShardIndex], number_of: dict[str, int], manifest: dict[str, Any] | None
) -> Ranges:
    labels = []
    for file, index in zip(files, indices, strict=True):
        unknown = [label for label in np.unique(index.labels).tolist() if label not in number_of]
        if unknown:
            _require_count_from_zero(file, np.unique(np.concatenate([each.labels for each in indices])).tolist())
            known = len(set(number_of.values()))
            raise UserError(
                f"{file}: label {unknown[0]!r} is none of the {known} classes; list them in {file.parent / CLASSES}, "
                "in the order of their numbers"
            )
        labels.append(np.array([number_of[label] for label in index.labels.tolist()], dtype=np.int64))
    return Ranges(
        files,
        np.repeat(np.arange(len(files)), [len(index) for index in indices]),
        np.concatenate([index.offsets for index in indices]),
        np.concatenate([index.sizes for index in indices]),
        np.concatenate([index.keys for index in indices]),
        np.concatenate(labels),
        _checksums(files, manifest),
    )


def _checksums(files: Sequence[Path], manifest: dict[str, Any] | None) -> list[str]:
    """From the manifest, after a look at the sizes; for other shards what stands in for them: name and size."""
    listed = {shard["file"]: shard for shard in (manifest or {}).get("shards", [])}
    checksums = []
    for file in files:
        size = file.stat().st_size
        known = listed.get(file.name)
        if manifest is not None and (known is None or known["bytes"] != size):
            reason = "is not in" if known is None else f"has {size:,} bytes and not the {known['bytes']:,} of"
            raise UserError(f"{file}: {reason} {MANIFEST}; pack again, or put the right shard there")
        checksums.append(known["sha256"] if known else f"{file.name} {size}")
    return checksums


def _require_all(path: Path, manifest: dict[str, Any] | None) -> None:
    """That every shard in the manifest is there: else a set without its test shards would hold out training images."""
    for shard in (manifest or {}).get("shards", []):
        if not (path / shard["file"]).exists():
            raise UserError(f"{path / shard['file']}: no such file, and {MANIFEST} lists it; run nofe pack again")


def _groups(manifest: dict[str, Any] | None, classes: int) -> dict[str, tuple[int, ...]]:
    groups = (manifest or {}).get("groups", {})
    return {str(name): tuple(ids) for name, ids in groups.items() if len(ids) == classes}


def _class_ids(manifest: dict[str, Any] | None, classes: int) -> tuple[str, ...]:
    ids = (manifest or {}).get("class_ids", [])
    return tuple(str(name) for name in ids) if len(ids) == classes else ()
