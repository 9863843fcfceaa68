"""What a picture shows, as a digest that it carries: its bytes also depend on the versions of what drew it."""

import hashlib
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEY = "Comment"  # one of PNG's own words for text
DIGITS = 6  # a mean may differ in its last bits between machines


def digest_of(figure: "Figure") -> str:
    """Of lines, bars of error, areas and images with their labels; not of how they look."""
    shown = [_shown(axes) for axes in figure.axes]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def digest_in(png: bytes) -> str | None:
    """The one that a picture carries, if it has one."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        return picture.info.get(KEY)


def _shown(axes: "Axes") -> dict[str, Any]:
    from matplotlib.collections import LineCollection

    collections = [each for each in axes.collections if isinstance(each, LineCollection)]
    _, labels = axes.get_legend_handles_labels()
    return {
        "words": [axes.get_xlabel(), axes.get_ylabel(), axes.get_title(), *map(str, labels)],
        "lines": [[str(line.get_label()), _rounded(line.get_xydata())] for line in axes.lines],
        "segments": [[_rounded(segment) for segment in each.get_segments()] for each in collections],
        "areas": [
            _rounded(patch.get_path().transformed(patch.get_patch_transform()).vertices) for patch in axes.patches
        ],
        "images": [_rounded(image.get_array()) for image in axes.images],
    }


def _rounded(values: Any) -> Any:
    return np.round(np.asarray(values, dtype=np.float64), DIGITS).tolist()
