"""Groups of classes that people made."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nofe.data.dataset import Dataset
from nofe.errors import UserError


def group_of_class(groups: str, dataset: Dataset) -> NDArray[np.int64]:
    """By name from the data set, or from a JSON file of {group: [class names]}."""
    if groups in dataset.groups:
        return np.array(dataset.groups[groups])
    try:
        named: dict[str, list[str]] = json.loads(Path(groups).read_text())
        listed = [name for names in named.values() for name in names]
        group_of_name = {name: index for index, names in enumerate(named.values()) for name in names}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        known = ", ".join(dataset.groups) or "none"
        raise UserError(
            f"specialties.groups={groups}: neither a grouping of {dataset.name} ({known}) nor a readable JSON file; "
            'write one as {"birds": ["crow", "wren"], ...}'
        ) from error
    missing = [name for name in dataset.class_names if name not in group_of_name]
    unknown = group_of_name.keys() - set(dataset.class_names)
    if missing or unknown:
        raise UserError(
            f"{groups}: {len(missing)} classes are in no group and {len(unknown)} names are no class "
            f"(first: {(missing or sorted(unknown, key=str))[0]}); name every class once"
        )
    if len(listed) > len(group_of_name) or len(set(group_of_name.values())) < 2:
        raise UserError(f"{groups}: a class is in two groups, or there is one group only; name every class once")
    return np.array([group_of_name[name] for name in dataset.class_names])
