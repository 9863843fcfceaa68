"""Tiny ImageNet as its archive lays it out."""

from collections.abc import Sequence
from pathlib import Path

from nofe.data.image_files import list_images, read_lines, require_images_of_each, walk
from nofe.data.pictures import Files, Listing
from nofe.errors import UserError

CLASSES, WORDS, ANNOTATIONS = "wnids.txt", "words.txt", "val_annotations.txt"


def is_tiny_imagenet(path: Path) -> bool:
    return (path / CLASSES).is_file() and (path / "train").is_dir()


def tiny_imagenet(path: Path) -> Listing:
    """train/WNID/images/*.JPEG; val/images/*.JPEG, labelled by val_annotations.txt; names by words.txt.

    Of its test images the labels are withheld; val/ is what is judged by. Boxes are not looked at.
    """
    ids = sorted({line.strip() for line in read_lines(path / CLASSES)} - {""})
    if not ids:
        raise UserError(f"{path / CLASSES}: names no classes; put the file of the archive back")
    missing = [name for name in ids if not (path / "train" / name).is_dir()]
    if missing:
        raise UserError(f"{path / 'train' / missing[0]}: no such folder, and {CLASSES} names it; unpack it again")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(ids):
        images, _ = walk(path / "train" / name)
        files.extend(images)
        labels.extend([label] * len(images))
    train = Files(files, labels, path)
    require_images_of_each(train, path / "train", ids)
    annotations = path / "val" / ANNOTATIONS
    if annotations.is_file():
        test = _annotated(annotations, ids, path)
    else:
        test = list_images(path / "val", ids, path)  # some people sort it into class folders
        if not len(test):
            raise UserError(f"{annotations}: no such file, and no class folders beside it; unpack the archive again")
    names = _readable(ids, path / WORDS)
    return Listing(f"folder:{path}", str(path), names, train, test, class_ids=tuple(ids))


def _annotated(annotations: Path, ids: Sequence[str], root: Path) -> Files:
    label_of = {name: label for label, name in enumerate(ids)}
    files: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(read_lines(annotations), start=1):
        if not line.strip():
            continue
        file, _, rest = line.partition("\t")
        name = rest.split("\t")[0].strip()
        if name not in label_of or Path(file).name != file:
            raise UserError(f"{annotations}: line {number} names no class of {CLASSES}; unpack the archive again")
        files.append(annotations.parent / "images" / file)
        labels.append(label_of[name])
    if not files:
        raise UserError(f"{annotations}: names no images; unpack the archive again")
    return Files(files, labels, root)


def _readable(ids: Sequence[str], words: Path) -> tuple[str, ...]:
    """The first word for each id; where two classes share it, with the id."""
    if not words.is_file():
        return tuple(ids)
    word_of = {
        name: text.split(",")[0].strip() for name, _, text in (line.partition("\t") for line in read_lines(words))
    }
    names = [word_of.get(name) or name for name in ids]
    return tuple(f"{name} ({id_})" if names.count(name) > 1 else name for name, id_ in zip(names, ids, strict=True))
