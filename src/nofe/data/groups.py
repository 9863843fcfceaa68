"""Groups of classes that people made."""

import json
from collections import Counter
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from nofe.data.dataset import Dataset
from nofe.errors import UserError
from nofe.files import expand_home

AS_IN = 'write {"birds": ["crow", "wren"], ...}'


def group_of_class(groups: str, dataset: Dataset) -> NDArray[np.int64]:
    """By name from the data set, or from a JSON file of {group: [class names]}."""
    if groups in dataset.groups:
        return np.array(dataset.groups[groups])
    try:
        named: Any = json.loads(expand_home(groups).read_bytes())  # in any encoding that JSON may have
    except (OSError, ValueError) as error:
        known = ", ".join(dataset.groups) or "none"
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(
            f"specialties.groups={groups}: neither a grouping of {dataset.name} ({known}) nor a readable JSON file "
            f"({reason}); {AS_IN}"
        ) from error
    _require_lists(groups, named)
    # The folder "été" of a Mac is spelt with other characters than the same word from a keyboard.
    named = {group: [normalize("NFC", name) for name in names] for group, names in named.items()}
    class_names = [normalize("NFC", name) for name in dataset.class_names]
    _require_every_class_once(groups, named, class_names)
    group_of_name = {name: index for index, names in enumerate(named.values()) for name in names}
    return np.array([group_of_name[name] for name in class_names])


def _require_lists(groups: str, named: Any) -> None:
    if not isinstance(named, dict):
        raise UserError(f"{groups}: is not an object of groups; {AS_IN}")
    for group, names in named.items():
        if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
            raise UserError(f"{groups}: group {group!r} is not a list of class names; {AS_IN}")
    if len(named) < 2:
        raise UserError(f"{groups}: has {len(named)} group; experts need two or more")


def _require_every_class_once(groups: str, named: dict[str, list[str]], class_names: list[str]) -> None:
    listed = Counter(name for names in named.values() for name in names)
    wrong = {
        "is no class of the data": sorted(listed.keys() - set(class_names)),
        "is in no group": [name for name in class_names if name not in listed],
        "is named twice": [name for name, times in listed.items() if times > 1],
    }
    said = [
        f"{names[0]!r} {what}" + (f" ({len(names):,} such names)" if len(names) > 1 else "")
        for what, names in wrong.items()
        if names
    ]
    if said:
        raise UserError(f"{groups}: {', '.join(said)}; name every class once, as its folder is called")
