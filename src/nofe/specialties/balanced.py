"""`fully-balanced`: specialties of equal size. The paper's random-order greedy, and its exact optimum.

Where K does not divide C, sizes differ by at most one: all are the ceiling of C/K or one less, and as many
reach the ceiling as it takes to hold every class. Which ones do is left to the confusion.
"""

import warnings

import numpy as np
import numpy.typing as npt

from nofe.errors import RunError, UserError
from nofe.specialties.checks import IntArray, check_shareable, counts_for
from nofe.specialties.partition import Specialties

# 20,000 classes in 200 specialties take fewer than 100,000: reached only if the solver goes astray.
MAX_PIVOTS = 10_000_000


def random_balanced(classes: int, count: int, rng: np.random.Generator) -> Specialties:
    """The random start of the alternation: sizes differ by at most one."""
    check_shareable(classes, count)
    return Specialties(rng.permutation(classes) % count)


def fully_balanced(confusion: npt.ArrayLike, current: Specialties, rng: np.random.Generator) -> Specialties:
    """Classes in random order, each to the specialty with room that recognises most of it (Sec. 3.1).

    Equal counts go to the specialty that comes first in an order drawn anew at each update. The release gives
    them to the largest index; late classes often find only zeros among the open specialties, so a fixed order
    would feed the leftovers to the same specialties at every update. `current` has no say, as in the paper.
    """
    counts = counts_for(confusion, current)  # (C, K)
    classes, outputs = counts.shape
    largest, may_grow = _quotas(classes, outputs)

    tie_order = rng.permutation(outputs)
    preferences = counts[:, tie_order]  # argmax takes the first of equals
    sizes = np.zeros(outputs, dtype=np.int64)
    labels = np.empty(classes, dtype=np.int64)
    for c in rng.permutation(classes):
        room = largest if may_grow > 0 else largest - 1
        k = np.where(sizes < room, preferences[c], -1).argmax()
        labels[c] = tie_order[k]
        sizes[k] += 1
        may_grow -= int(sizes[k] == largest)
    return Specialties(labels)


def exact(confusion: npt.ArrayLike, current: Specialties, rng: np.random.Generator) -> Specialties:
    """The most images in their own specialty, sum_i M[i, l(i)], that the same sizes allow.

    Among optima, one that keeps the most classes where they are: a second update from the same confusion
    changes nothing, so the alternation settles. `rng` is not used; every rule takes it.
    """
    counts = counts_for(confusion, current)  # (C, K)
    classes = len(counts)
    # Lexicographic: one image outweighs keeping all classes. Whole numbers, so float64 holds them exactly.
    scores = counts.astype(np.float64) * (classes + 1)
    scores[np.arange(classes), current.target_of_class] += 1
    return Specialties(_best_seats(scores))


def _quotas(classes: int, outputs: int) -> tuple[int, int]:
    """Size of the largest specialties, and how many have it; the others have one class less."""
    check_shareable(classes, outputs)
    largest = -(-classes // outputs)
    return largest, classes - outputs * (largest - 1)


def _best_seats(scores: npt.NDArray[np.float64]) -> IntArray:
    """Labels of the highest total score, by network simplex on a transportation problem.

    Every specialty offers `largest` seats. Beside each class, one filler per specialty is seated: in the
    specialty's own last seat, which makes it smaller by one, or in a pool that holds exactly as many fillers
    as there are specialties of the largest size. So the solver chooses which specialties those are, on
    C+K rows and K+1 columns; one unit per row makes every vertex integral.
    """
    from ot.lp import emd  # here, because importing ot takes seconds and loads torch

    classes, outputs = scores.shape
    largest, with_largest_size = _quotas(classes, outputs)
    best = float(scores.max())
    # Dearer than all that one forbidden seat can gain: an alternating cycle meets each column once.
    forbidden = (outputs + 1) * best + 1
    if forbidden * (classes + outputs) >= 2**53:  # the simplex starts from arcs of about this cost
        raise UserError("confusion: counts are too large for exact arithmetic; sample fewer images")

    cost = np.full((classes + outputs, outputs + 1), forbidden)
    cost[:classes, :outputs] = -scores
    cost[classes + np.arange(outputs), np.arange(outputs)] = 0  # a filler in its own specialty
    cost[classes:, outputs] = 0  # a filler in the pool
    supply = np.ones(classes + outputs)
    seats = np.full(outputs + 1, float(largest))
    seats[outputs] = with_largest_size

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stops early becomes an error below
        plan, log = emd(supply, seats, cost, numItermax=MAX_PIVOTS, log=True, center_dual=False)
    if log["warning"] is not None:
        raise RunError(f"exact: the solver stopped before the optimum ({log['warning']}); use fully-balanced")
    labels = plan[:classes].argmax(axis=1)
    sizes = np.bincount(labels, minlength=outputs + 1)
    whole = bool(np.all(plan[:classes].max(axis=1) == 1)) and sizes[outputs] == 0
    if not whole or not set(sizes[:outputs].tolist()) <= {largest - 1, largest}:
        raise RunError("exact: the solver split a class or broke a quota; use fully-balanced")
    return np.asarray(labels, dtype=np.int64)
