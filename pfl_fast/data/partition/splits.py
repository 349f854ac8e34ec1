"""Which of a client's samples it trains on, is tested on, and is validated on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.partition.rules import Lots
from pfl_fast.randomness import key, permutation


def split(lots: Lots, test_fraction: float, seed: int) -> tuple[Lots, Lots]:
    """Each client's ``(train, test)``, shuffled, not stratified; the number of tests is rounded up, but one trains."""
    train, test = [], []
    for client, lot in enumerate(lots):
        order = permutation(key(seed, "split", client), len(lot))
        trained = max(min(1, len(lot)), int((1 - test_fraction) * len(lot)))
        train.append(lot[order[:trained]])
        test.append(lot[order[trained:]])
    return train, test


def held_out(groups: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """``[n]``, whether a sample is a test sample: the same fraction of every group, drawn at random."""
    chosen = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups).tolist():
        members = np.flatnonzero(groups == group)
        count = min(len(members) - 1, int(np.ceil(fraction * len(members))))
        chosen[members[permutation(key(seed, "held out", group), len(members))[:count]]] = True
    return chosen


def proportional(y: NDArray[np.int64], lots: Lots, pool: NDArray[np.int64], seed: int) -> Lots:
    """Shares out the samples ``pool`` so that a client gets of every class as large a part as it has in ``lots``.

    A client that would get nothing is given one sample of its classes by the client that has most of them.
    """
    classes = int(y.max()) + 1
    counts = np.stack([np.bincount(y[lot], minlength=classes) for lot in lots])
    shares: list[list[NDArray[np.int64]]] = []  # by class, then client
    for label in range(classes):
        members = pool[y[pool] == label]
        members = members[permutation(key(seed, "test", label), len(members))]
        ends = np.cumsum(counts[:, label])
        used = members if ends[-1] else members[:0]
        shares.append(np.split(used, ends[:-1] * len(used) // max(1, ends[-1])))
    for client in range(len(lots)):
        if not any(len(share[client]) for share in shares):
            _give_one(shares, counts[client], client)
    return [np.concatenate([share[client] for share in shares]) for client in range(len(lots))]


def _give_one(shares: list[list[NDArray[np.int64]]], held: NDArray[np.int64], client: int) -> None:
    for label in np.argsort(-held, kind="stable").tolist():
        sizes = [len(share) for share in shares[label]]
        donor = int(np.argmax(sizes))
        if held[label] and sizes[donor] > 1:
            shares[label][client], shares[label][donor] = shares[label][donor][:1], shares[label][donor][1:]
            return


def validated(train: Lots, fraction: float, seed: int) -> tuple[Lots, Lots]:
    """Takes ``fraction`` of every client's training samples away at random; the others keep their order."""
    kept, taken = [], []
    for client, lot in enumerate(train):
        count = min(len(lot) - 1, max(1, int(fraction * len(lot)))) if fraction and len(lot) else 0
        chosen = np.zeros(len(lot), dtype=bool)
        chosen[permutation(key(seed, "validation", client), len(lot))[:count]] = True
        kept.append(lot[~chosen])
        taken.append(lot[chosen])
    return kept, taken
