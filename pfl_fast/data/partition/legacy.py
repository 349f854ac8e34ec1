"""The label-skew partitions as published code draws them: NumPy's legacy generator, one stream for everything.

``state`` is ``np.random.RandomState(seed)``; the published splits have seed 1 and nothing drawn before. It is used up
in a fixed order: first the partition, then :func:`split` of one client after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.partition.rules import Lots, class_quota
from pfl_fast.errors import DataError

TRIES = 1000  # the published loop has no end; the published settings need up to 12


def dirichlet(y: NDArray[np.int64], clients: int, beta: float, state: np.random.RandomState, least: int) -> Lots:
    """Dirichlet label skew: all classes are drawn anew until every client has ``least`` samples."""
    for _ in range(TRIES):
        lots: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
        held = np.zeros(clients, dtype=np.int64)
        for label in range(int(y.max()) + 1):
            members = np.flatnonzero(y == label)
            state.shuffle(members)
            shares = state.dirichlet(np.repeat(beta, clients)) * (held < len(y) / clients)
            total = shares.sum()
            # Where nothing is left to share by, the published cuts overflow and the last client gets the class.
            shares = shares / total if total > 0 else np.zeros(clients)
            pieces = np.split(members, (np.cumsum(shares) * len(members)).astype(int)[:-1])
            for lot, piece in zip(lots, pieces, strict=True):
                lot.append(piece)
            held += [len(piece) for piece in pieces]
        if held.min() >= least:
            return [np.concatenate(lot) for lot in lots]
    raise DataError(
        f"legacy dirichlet: {TRIES} tries gave no partition in which each of {clients} clients has {least} samples "
        f"(beta = {beta}); raise beta, take fewer clients, or leave legacy off, which repairs the last try"
    )


def pathological(
    y: NDArray[np.int64], clients: int, classes_per_client: int, state: np.random.RandomState, least: int
) -> Lots:
    """A few classes per client: neighbours share them, the last of them gets what the others leave."""
    classes = int(y.max()) + 1
    together = int(np.ceil(clients / classes * classes_per_client))
    quota = np.full(clients, classes_per_client)
    lots: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in range(classes):
        chosen = np.flatnonzero(quota > 0)[:together]
        if len(chosen) == 0:
            break
        members = np.flatnonzero(y == label)
        low, high = class_quota(len(members), len(chosen), least, classes)
        if low >= high and len(chosen) > 1:
            raise DataError(
                f"legacy pathological: class {label} has {len(members)} samples, too few for {len(chosen)} clients "
                f"that get at least {low} each; take fewer clients or leave legacy off"
            )
        sizes = state.randint(low, high, len(chosen) - 1) if len(chosen) > 1 else np.zeros(0, dtype=int)
        for client, piece in zip(chosen, np.split(members, np.cumsum(sizes)), strict=True):
            lots[client].append(piece)
            quota[client] -= 1
    return [np.concatenate([np.zeros(0, dtype=np.int64), *lot]) for lot in lots]


def split(lots: Lots, test_fraction: float, state: np.random.RandomState) -> tuple[Lots, Lots]:
    """Each client's ``(train, test)`` as scikit-learn's ``train_test_split(train_size=1 - test_fraction)`` has it."""
    train, test = [], []
    for lot in lots:
        order = state.permutation(len(lot))
        tests = len(lot) - int((1 - test_fraction) * len(lot))
        train.append(lot[order[tests:]])
        test.append(lot[order[:tests]])
    return train, test
