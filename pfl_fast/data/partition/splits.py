"""Splits the samples of each client into training, test and validation samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.partition.rules import ClientIndices
from pfl_fast.randomness import key, permutation


def split(indices: ClientIndices, test_fraction: float, seed: int) -> tuple[ClientIndices, ClientIndices]:
    """Returns training and test samples, shuffled, not stratified; rounds tests up, but keeps one for training."""
    train, test = [], []
    for client, index in enumerate(indices):
        order = permutation(key(seed, "split", client), len(index))
        trained = max(min(1, len(index)), int((1 - test_fraction) * len(index)))
        train.append(index[order[:trained]])
        test.append(index[order[trained:]])
    return train, test


def test_mask(groups: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Returns ``[n]`` bool, True for test samples: the same fraction of every group, drawn at random."""
    chosen = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups).tolist():
        members = np.flatnonzero(groups == group)
        count = min(len(members) - 1, int(np.ceil(fraction * len(members))))
        chosen[members[permutation(key(seed, "held out", group), len(members))[:count]]] = True
    return chosen


def proportional(y: NDArray[np.int64], indices: ClientIndices, pool: NDArray[np.int64], seed: int) -> ClientIndices:
    """Distributes the samples ``pool``: each client gets the same fraction of a class as it has in ``indices``.

    A client without samples gets one of its classes from the client with most samples of that class.
    """
    classes = int(y.max()) + 1
    counts = np.stack([np.bincount(y[index], minlength=classes) for index in indices])
    shares: list[list[NDArray[np.int64]]] = []  # by class, then client
    for label in range(classes):
        members = pool[y[pool] == label]
        members = members[permutation(key(seed, "test", label), len(members))]
        ends = np.cumsum(counts[:, label])
        used = members if ends[-1] else members[:0]
        shares.append(np.split(used, ends[:-1] * len(used) // max(1, ends[-1])))
    for client in range(len(indices)):
        if not any(len(share[client]) for share in shares):
            _give_one(shares, counts[client], client)
    return [np.concatenate([share[client] for share in shares]) for client in range(len(indices))]


def _give_one(shares: list[list[NDArray[np.int64]]], held: NDArray[np.int64], client: int) -> None:
    for label in np.argsort(-held, kind="stable").tolist():
        sizes = [len(share) for share in shares[label]]
        donor = int(np.argmax(sizes))
        if held[label] and sizes[donor] > 1:
            shares[label][client], shares[label][donor] = shares[label][donor][:1], shares[label][donor][1:]
            return


def split_validation(train: ClientIndices, fraction: float, seed: int) -> tuple[ClientIndices, ClientIndices]:
    """Moves a random ``fraction`` of each client's training samples to validation; the others keep their order."""
    kept, taken = [], []
    for client, index in enumerate(train):
        count = min(len(index) - 1, max(1, int(fraction * len(index)))) if fraction and len(index) else 0
        chosen = np.zeros(len(index), dtype=bool)
        chosen[permutation(key(seed, "validation", client), len(index))[:count]] = True
        kept.append(index[~chosen])
        taken.append(index[chosen])
    return kept, taken


def limit_groups(pool: NDArray[np.int64], groups: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Draws at most ``count`` samples of ``pool`` from each group; the drawn samples keep their order."""
    kept = []
    for group in np.unique(groups[pool]).tolist():
        members = pool[groups[pool] == group]
        kept.append(members[permutation(key(seed, "group limit", group), len(members))[:count]])
    return np.sort(np.concatenate(kept))


def limit(train: ClientIndices, count: int, seed: int) -> ClientIndices:
    """Draws at most ``count`` training samples of each client; the drawn samples keep their order."""
    drawn = []
    for client, index in enumerate(train):
        order = permutation(key(seed, "limit", client), len(index))
        drawn.append(index[np.sort(order[:count])])
    return drawn
