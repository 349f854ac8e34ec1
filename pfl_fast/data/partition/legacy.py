"""Label-skew partitions of the papers' published code, drawn from NumPy's legacy generator.

``state`` is ``np.random.RandomState(seed)``, with seed 1 in the published code. The order of draws is fixed: first the
partition, then :func:`split` of one client after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.partition.rules import ClientIndices, class_quota
from pfl_fast.errors import DataError

TRIES = 1000  # the published code tries for ever; the published settings need up to 12


def dirichlet(
    y: NDArray[np.int64], clients: int, beta: float, state: np.random.RandomState, min_samples: int
) -> ClientIndices:
    """Dirichlet label skew: draws all classes again until each client has ``min_samples`` samples."""
    for _ in range(TRIES):
        indices: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
        held = np.zeros(clients, dtype=np.int64)
        for label in range(int(y.max()) + 1):
            members = np.flatnonzero(y == label)
            state.shuffle(members)
            shares = state.dirichlet(np.repeat(beta, clients)) * (held < len(y) / clients)
            total = shares.sum()
            # With zero shares everywhere, the published code overflows and gives the class to the last client.
            shares = shares / total if total > 0 else np.zeros(clients)
            pieces = np.split(members, (np.cumsum(shares) * len(members)).astype(int)[:-1])
            for index, piece in zip(indices, pieces, strict=True):
                index.append(piece)
            held += [len(piece) for piece in pieces]
        if held.min() >= min_samples:
            return [np.concatenate(index) for index in indices]
    raise DataError(
        f"legacy dirichlet: {TRIES} tries gave no partition in which each of {clients} clients has {min_samples} "
        f"samples (beta = {beta}); raise beta, take fewer clients, or leave out legacy_partition"
    )


def pathological(
    y: NDArray[np.int64], clients: int, classes_per_client: int, state: np.random.RandomState, min_samples: int
) -> ClientIndices:
    """Gives each client a few classes, shared with its neighbours; the last client of a class gets the rest of it."""
    classes = int(y.max()) + 1
    together = int(np.ceil(clients / classes * classes_per_client))
    quota = np.full(clients, classes_per_client)
    indices: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in range(classes):
        chosen = np.flatnonzero(quota > 0)[:together]
        if len(chosen) == 0:
            break
        members = np.flatnonzero(y == label)
        low, high = class_quota(len(members), len(chosen), min_samples, classes)
        if low >= high and len(chosen) > 1:
            raise DataError(
                f"legacy pathological: class {label} has {len(members)} samples, too few for {len(chosen)} clients "
                f"that get at least {low} each; take fewer clients or leave out legacy_partition"
            )
        sizes = state.randint(low, high, len(chosen) - 1) if len(chosen) > 1 else np.zeros(0, dtype=int)
        for client, piece in zip(chosen, np.split(members, np.cumsum(sizes)), strict=True):
            indices[client].append(piece)
            quota[client] -= 1
    return [np.concatenate([np.zeros(0, dtype=np.int64), *index]) for index in indices]


def split(
    indices: ClientIndices, test_fraction: float, state: np.random.RandomState
) -> tuple[ClientIndices, ClientIndices]:
    """Returns training and test samples, equal to scikit-learn's ``train_test_split(train_size=1 - test_fraction)``."""
    train, test = [], []
    for index in indices:
        order = state.permutation(len(index))
        tests = len(index) - int((1 - test_fraction) * len(index))
        train.append(index[order[tests:]])
        test.append(index[order[:tests]])
    return train, test
