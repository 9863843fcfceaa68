"""`elasso`: specialties softly kept of equal size by the exclusive lasso norm (Sec. 3.1, Eq. 3)."""

import math

import numpy as np
import numpy.typing as npt

from nofe.errors import UserError
from nofe.specialties.checks import IntArray, counts_for, whole_numbers
from nofe.specialties.partition import Specialties

# lambda is on the scale of counts from this many images: the paper's sample, where 1000 was its best value.
IMAGES_OF_STRENGTH = 10_000


def elasso(
    confusion: npt.ArrayLike,
    current: Specialties,
    rng: np.random.Generator,
    *,
    strength: float = 1000.0,
    sweeps: int | None = 1,
) -> Specialties:
    """Lower lambda * sqrt(sum_j n_j^2) - sum_i M[i, l(i)], one class at a time, in random order.

    `strength` is lambda for a confusion of 10,000 images and is rescaled to the images counted here. To leave
    one of equal specialties for another costs a class strength * sqrt(K) / 10,000 of its images: a third at
    K=10, but all of them at K=100, so from a balanced start a larger K needs a smaller strength to learn.

    `sweeps` is the most passes over all classes: 1 as in the release, None until no class moves as in the
    paper. A class stays where it is unless another place is better: each move lowers the cost, so the sweeps
    end, and the generalist learns no new target for nothing. The release sends all ties to the lowest index;
    here only ties between two better places go there.

    Specialties left without a class are dropped; their columns take part in the next update and may be
    filled again.
    """
    if sweeps is not None and sweeps < 1:
        raise UserError(f"sweeps: {sweeps} given; pass at least 1, or None to go on until no class moves")
    counts = counts_for(confusion, current)  # (C, K)
    outputs = counts.shape[1]
    weight = _weight(counts, strength)
    labels = current.target_of_class
    images = counts.astype(np.float64)
    done = 0
    while sweeps is None or done < sweeps:
        if not _sweep(images, labels, outputs, weight, rng.permutation(len(labels))):
            break
        done += 1
    return Specialties.from_labels_dropping_empty(labels, outputs)


def elasso_cost(confusion: npt.ArrayLike, specialties: Specialties | npt.ArrayLike, strength: float = 1000.0) -> float:
    """Eq. 3 for a partition, or for labels that name columns of the confusion; in images."""
    if not isinstance(specialties, Specialties):
        labels = whole_numbers(specialties, "labels")
        specialties = Specialties.from_labels_dropping_empty(labels, int(labels.max()) + 1)
    counts = counts_for(confusion, specialties)
    sizes = specialties.sizes  # an empty specialty adds nothing to the norm
    recognised = int(counts[np.arange(len(counts)), specialties.target_of_class].sum())
    return _weight(counts, strength) * math.sqrt(int(sizes @ sizes)) - recognised


def _weight(counts: IntArray, strength: float) -> float:
    """lambda on the scale of these counts."""
    if not math.isfinite(strength) or strength < 0:
        raise UserError(f"strength: {strength} given; pass a finite number, 0 or more")
    return strength * int(counts.sum()) / IMAGES_OF_STRENGTH


def _sweep(
    images: npt.NDArray[np.float64],  # (C, K)
    labels: IntArray,
    outputs: int,
    weight: float,
    order: IntArray,
) -> int:
    """Put each class, in `order`, at its best place with the others fixed.

    Changes `labels` and returns how many moved.
    """
    sizes = np.bincount(labels, minlength=outputs).astype(np.float64)
    squares = float(sizes @ sizes)
    # Moves must gain more than rounding can invent, or classes could circle between equal places.
    tie = 1e-9 * max(1.0, weight)
    moved = 0
    for c in order:
        here = labels[c]
        sizes[here] -= 1
        squares -= 2 * sizes[here] + 1
        norms = np.sqrt(squares + 2 * sizes + 1)  # (K,) ||F||_e with the class put at each place
        # norms - norms[here], written so that it loses no digits where sizes are large and nearly equal.
        heavier = 2 * (sizes - sizes[here]) / (norms + norms[here])
        change = weight * heavier - (images[c] - images[c, here])  # (K,) in Eq. 3, 0 at the current place
        best = change.argmin()
        if change[best] >= -tie:
            best = here
        else:
            moved += 1
        labels[c] = best
        squares += 2 * sizes[best] + 1
        sizes[best] += 1
    return moved
