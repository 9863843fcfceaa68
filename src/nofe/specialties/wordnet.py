"""Specialties from WordNet's hypernyms: what a dictionary, not a network, finds alike (Sec. 4.2).

ImageNet names a class by its WordNet 3.0 offset, as in n02084071, dog. Hypernyms are a graph: a dog is a canine and a
domestic animal. Every synset is put below the hypernym that WordNet lists first, which makes a tree to slice.
"""

import gzip
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np

from nofe.errors import UserError
from nofe.specialties.checks import check_shareable
from nofe.specialties.partition import Specialties

TABLE = "wordnet-3.0-hypernyms.txt.gz"


@cache
def hypernyms() -> dict[str, tuple[str, ...]]:
    """Of each synset of ImageNet and all above them, the hypernyms as WordNet lists them; the root has none."""
    packed = (files("nofe.specialties") / TABLE).read_bytes()
    rows = (line.split(" ") for line in gzip.decompress(packed).decode().splitlines())  # offset, word, hypernyms
    return {f"n{offset}": tuple(f"n{above}" for above in hypernyms) for offset, _, *hypernyms in rows}


def wordnet_specialties(class_names: Sequence[str], count: int) -> Specialties:
    """K groups: the tree sliced at the first depth that gives K or more, the smallest of them put together.

    ImageNet's thousand classes give exactly 10 groups at depth 3, the paper's number, with 932 classes in one of them;
    16 at the next, where living things and artefacts part. The paper's tree must have been another, which it does not
    describe: who always answers with the largest group is right for 93 %, and its generalist did much worse.
    """
    check_shareable(len(class_names), count)
    paths = [path_of(name) for name in class_names]
    groups: list[str] = []
    for depth in range(max(map(len, paths))):
        groups = [path[min(depth, len(path) - 1)] for path in paths]  # the class itself, where it lies higher
        if len(set(groups)) >= count:
            break
    # By size, then by id: the order of the classes must not matter.
    by_size = sorted(Counter(groups).items(), key=lambda group: (-group[1], group[0]))
    kept = {group for group, _ in by_size[: count - 1]}
    merged = [group if group in kept else "rest" for group in groups]
    order = {group: index for index, group in enumerate(dict.fromkeys(merged))}
    return Specialties(np.array([order[group] for group in merged]))


def path_of(name: str) -> tuple[str, ...]:
    """From the root down to the class, by the first hypernym of each."""
    if not re.fullmatch(r"n\d{8}", name):
        raise UserError(
            f"rule 'wordnet': class '{name}' is not the id of a WordNet synset such as n02084071; "
            "name classes as ImageNet does, or choose another rule"
        )
    above = hypernyms()
    if name not in above:
        raise UserError(
            f"rule 'wordnet': '{name}' is no synset of ImageNet; ids must be of WordNet 3.0, others have other offsets"
        )
    path = [name]
    while above[path[-1]]:
        path.append(above[path[-1]][0])
    return tuple(reversed(path))
