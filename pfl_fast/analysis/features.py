"""Measures of features ``[n, d]``: sparsity, Fisher score, nearest-neighbour probe, overlap of selected features.

Zhu et al., "Take Your Pick: Enabling Effective Personalized Federated Learning within Low-dimensional Feature Space".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import KNeighborsClassifier

EPS = 1e-5
RATIOS = tuple(ratio / 10 for ratio in range(1, 11))


def sparsity_ratio(z: ArrayLike, eps: float = EPS, absolute: bool = False) -> float:
    """Returns the share of entries of ``z / |z|`` that are at most ``eps``, mean over samples (Eq. 3-4).

    Args:
        z: ``[n, d]`` features, outputs of a ReLU in the paper.
        eps: threshold.
        absolute: compare absolute values, for features with negative entries.

    >>> sparsity_ratio([[0.0, 3.0, 4.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    0.625
    """
    z = np.asarray(z, float)
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    unit = np.divide(z, norm, out=np.zeros_like(z), where=norm > 0)
    return float(((np.abs(unit) if absolute else unit) <= eps).mean())


def fisher_score(z: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Returns the Fisher score of each feature (Eq. 5-7): variance between classes over variance within classes.

        F_j = sum_c n_c (mu_cj - mu_j)^2 / sum_c n_c sigma_cj^2       0 where the denominator is 0

    >>> fisher_score([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0], [6.0, 1.0]], [0, 0, 1, 1])
    array([4., 0.])
    """
    z, y = np.asarray(z, float), np.asarray(y)
    between, within = np.zeros(z.shape[1]), np.zeros(z.shape[1])
    for label in np.unique(y):
        own = z[y == label]
        between += len(own) * (own.mean(0) - z.mean(0)) ** 2
        within += len(own) * own.var(0)
    score: NDArray[np.float64] = np.divide(between, within, out=np.zeros_like(between), where=within > 0)
    return score


def knn_probe(
    train: tuple[ArrayLike, ArrayLike],
    test: tuple[ArrayLike, ArrayLike],
    ratios: Sequence[float] = RATIOS,
    neighbours: int = 10,
    scores: ArrayLike | None = None,
) -> list[float]:
    """Returns the test accuracy of a nearest-neighbour classifier on the best features (Fig. 1, 3).

    Args:
        train: features ``[n, d]`` and labels ``[n]``; the classifier is fitted to them.
        test: features and labels.
        ratios: shares of the features to keep, those of the highest score.
        neighbours: number of neighbours (Euclidean distance, majority vote).
        scores: ``[d]`` scores of the features; None: Fisher scores of the training features.
    """
    (z, y), (z_test, y_test) = ([np.asarray(array) for array in pair] for pair in (train, test))
    order = np.argsort(-np.asarray(fisher_score(z, y) if scores is None else scores), kind="stable")
    found = []
    for ratio in ratios:
        kept = order[: max(1, round(ratio * z.shape[1]))]
        probe = KNeighborsClassifier(min(neighbours, len(z))).fit(z[:, kept], y)
        found.append(float(probe.score(z_test[:, kept], y_test)))
    return found


def important_features(masks: ArrayLike, share: float = 0.5) -> set[int]:
    """Returns the ``share`` of features that ``[n, d]`` masks select most often."""
    counts = np.asarray(masks, float).sum(0)
    return set(np.argsort(-counts, kind="stable")[: round(share * len(counts))].tolist())


def overlap(sets: Sequence[set[int]]) -> NDArray[np.float64]:
    """Returns ``|A and B| / |A or B|`` of all pairs of sets (Fig. 10).

    >>> overlap([{1, 2}, {2, 3}])
    array([[1.        , 0.33333333],
           [0.33333333, 1.        ]])
    """
    return np.array([[len(a & b) / len(a | b) if a | b else 1.0 for b in sets] for a in sets])
