"""What learned specialties are compared with: unconstrained argmax, random, spectral and given groups."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nofe.errors import UserError
from nofe.specialties.checks import check_shareable, counts_for, image_counts
from nofe.specialties.partition import Specialties

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def argmax(confusion: npt.ArrayLike, current: Specialties, rng: np.random.Generator) -> Specialties:
    """Each class to the specialty that recognises most of it: the greedy the paper rejects (Sec. 3.1).

    A few specialties absorb nearly all classes; those left empty are dropped. Ties keep the current
    specialty, else go to the first in an order drawn anew at each update, as in `fully_balanced`.
    """
    counts = counts_for(confusion, current)  # (C, K)
    outputs = counts.shape[1]
    stay = current.target_of_class
    tie_order = rng.permutation(outputs)
    best = tie_order[counts[:, tie_order].argmax(axis=1)]
    stays = np.take_along_axis(counts, stay[:, None], axis=1)[:, 0] == counts.max(axis=1)
    return Specialties.from_labels_dropping_empty(np.where(stays, stay, best), outputs)


def spectral(confusion_of_classes: "npt.ArrayLike | csr_array", count: int, rng: np.random.Generator) -> Specialties:
    """Spectral clustering of the (C, C) confusion of a base network (the other rule the paper rejects).

    Classes are as alike as they are often taken for each other, either way round. Specialties that come out
    empty are dropped. The confusion may be sparse, and of many classes should be.
    """
    counts = _square(confusion_of_classes)
    classes = counts.shape[0]
    check_shareable(classes, count)
    if count in (1, classes):  # nothing to solve, and the eigensolver takes fewer vectors than classes
        return Specialties(np.arange(classes) % count)

    from sklearn.cluster import SpectralClustering
    from sklearn.exceptions import ConvergenceWarning

    links = ((counts + counts.T) / 2).tocsr()  # (C, C)
    links.setdiag(0)
    links.eliminate_zeros()
    solver = SpectralClustering(
        n_clusters=count,
        affinity="precomputed",
        random_state=int(rng.integers(2**31)),
        n_init=10,
        eigen_solver="arpack" if classes <= DENSE_CLASSES else "lobpcg",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than asked: dropped below
        warnings.filterwarnings("ignore", message=r"\s*Exited ", category=UserWarning)  # near enough
        labels = solver.fit_predict(_joined_densely(links) if classes <= DENSE_CLASSES else _joined_sparsely(links))
    partition = Specialties.from_labels_dropping_empty(labels, count)
    return Specialties(partition.specialty_of_class)  # no generalist yet: its outputs are the specialties


DENSE_CLASSES = 2000  # of which all pairs fit in memory, and every eigenvector is found


def _square(confusion: "npt.ArrayLike | csr_array") -> "csr_array":
    """Checked counts of true class by predicted class."""
    from scipy.sparse import csr_array, issparse

    counts = csr_array(confusion if issparse(confusion) else image_counts(confusion))
    classes, predicted = counts.shape
    if classes != predicted:
        raise UserError(
            f"confusion of classes: has {classes} rows and {predicted} columns; "
            "count true class by predicted class, (C, C)"
        )
    return counts


# Classes never confused make a graph of several pieces, whose first eigenvectors are arbitrary mixtures: weak links
# join the pieces, and leave the others in charge.


def _joined_densely(links: "csr_array") -> npt.NDArray[np.float64]:
    """A thousandth of the mean link between all pairs, between all pairs."""
    affinity: npt.NDArray[np.float64] = links.toarray()
    affinity += 1e-3 * max(affinity.mean(), 1 / len(affinity))
    return affinity


def _joined_sparsely(links: "csr_array") -> "csr_array":
    """A thousandth of the mean link between one class of each piece and one of the next."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pieces, piece_of_class = connected_components(links, directed=False)
    if pieces == 1:
        return links
    _, first = np.unique(piece_of_class, return_index=True)  # (pieces,)
    following = np.roll(first, -1)
    weak = np.full(2 * pieces, 1e-3 * max(links.data.mean() if links.nnz else 1.0, 1e-6))
    ring = coo_array((weak, (np.r_[first, following], np.r_[following, first])), shape=links.shape)
    return (links + ring).tocsr()


def given_groups(group_of_class: Sequence[int] | Sequence[str] | npt.NDArray[np.generic]) -> Specialties:
    """Specialties somebody wrote down, an id or a name for each class (CIFAR-100's superclasses).

    Renumbered in ascending order of ids, or alphabetical order of names; gaps between ids do not matter.
    """
    groups = np.asarray(group_of_class)
    if groups.ndim != 1 or groups.size == 0:
        raise UserError(f"groups: have shape {groups.shape}; pass one group for each class")
    if groups.dtype.kind not in "iuU":
        raise UserError(f"groups: are {groups.dtype} values; pass whole numbers or names")
    _, specialty_of_class = np.unique(groups, return_inverse=True)
    return Specialties(specialty_of_class)
