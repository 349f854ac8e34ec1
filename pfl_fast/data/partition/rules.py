"""Who gets which sample: pure functions from labels, domains and a seed to one array of sample numbers per client."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_fast.errors import DataError
from pfl_fast.randomness import generator, key, permutation, uniform

Lots = list[NDArray[np.int64]]  # one array of sample numbers per client
TRIES = 10  # of dirichlet, before the best of them is repaired


def iid(samples: int, clients: int, seed: int) -> Lots:
    """Equal shares of all samples in random order; sizes differ by at most one.

    >>> [len(lot) for lot in iid(7, 3, seed=0)]
    [3, 2, 2]
    """
    return np.array_split(permutation(key(seed, "iid"), samples), clients)


def dirichlet(y: NDArray[np.int64], clients: int, beta: float, seed: int, least: int = 1) -> Lots:
    """Dirichlet label skew: every class is shared out by proportions drawn from Dirichlet(beta, ..., beta).

    A client that already holds its equal share gets nothing more of later classes. If some client is left with fewer
    than ``least`` samples, all is drawn again; if that does not help, the largest clients give some of theirs.

    Args:
        y: ``[n]`` labels.
        clients: how many.
        beta: small is skewed, large is even.
        seed: of every draw.
        least: samples each client has in the end; ``clients * least`` may not exceed n.
    """
    demand(clients, least, len(y))
    best, fewest = [], -1
    for attempt in range(TRIES):
        lots = _dirichlet_once(y, clients, beta, key(seed, "dirichlet", attempt))
        smallest = min(map(len, lots))
        if smallest > fewest:
            best, fewest = lots, smallest
        if fewest >= least:
            break
    return _repaired(best, least)


def demand(clients: int, least: int, samples: int) -> None:
    """Refuses what no partition can give."""
    if clients * least > samples:
        raise DataError(
            f"{clients} clients with at least {least} samples each need {clients} x {least} = {clients * least} "
            f"samples, but there are {samples}; take at most {samples // max(1, least)} clients, or a smaller least"
        )


def _dirichlet_once(y: NDArray[np.int64], clients: int, beta: float, draw: int) -> Lots:
    random = generator(draw)
    lots: list[Lots] = [[] for _ in range(clients)]
    held = np.zeros(clients, dtype=np.int64)
    for label in range(int(y.max()) + 1):
        members = random.permutation(np.flatnonzero(y == label))
        open_ = held < len(y) / clients
        # Tiny betas underflow to 0 or NaN for all that are open: then they share equally.
        shares = np.nan_to_num(random.dirichlet(np.full(clients, beta))) * open_
        shares = shares / shares.sum() if shares.sum() > 0 else open_ / open_.sum()
        pieces = np.split(members, (np.cumsum(shares)[:-1] * len(members)).astype(np.int64))
        for lot, piece in zip(lots, pieces, strict=True):
            lot.append(piece)
        held += [len(piece) for piece in pieces]
    return [np.concatenate(lot) for lot in lots]


def _repaired(lots: Lots, least: int) -> Lots:
    lots = list(lots)
    for client in range(len(lots)):
        while len(lots[client]) < least:
            donor = int(np.argmax([len(lot) for lot in lots]))
            count = min(least - len(lots[client]), len(lots[donor]) - least)
            lots[donor], given = np.split(lots[donor], [len(lots[donor]) - count])
            lots[client] = np.concatenate([lots[client], given])
    return lots


def pathological(y: NDArray[np.int64], clients: int, classes_per_client: int, seed: int, least: int = 1) -> Lots:
    """Every client has ``classes_per_client`` classes; those who share a class get unequal parts of it.

    Classes are dealt in random order, each to the clients with most room left, so that all have their number of
    classes and classes have equally many clients (within one). Of m clients that share n samples, m - 1 get a number
    uniform in ``[max(n / m / 10, least / classes), n / m)`` and the last one the rest.
    """
    classes = int(y.max()) + 1
    if classes_per_client > classes:
        raise DataError(f"{classes_per_client} classes per client, but there are only {classes} classes")
    room = np.full(clients, classes_per_client)
    lots: list[Lots] = [[np.zeros(0, dtype=np.int64)] for _ in range(clients)]
    ends = np.arange(classes + 1) * clients * classes_per_client // classes
    for place, label in enumerate(permutation(key(seed, "classes"), classes).tolist()):
        chosen = np.sort(np.argsort(-room, kind="stable")[: ends[place + 1] - ends[place]])
        if len(chosen) == 0:
            continue
        room[chosen] -= 1
        members = np.flatnonzero(y == label)
        members = members[permutation(key(seed, "members", label), len(members))]
        low, high = class_quota(len(members), len(chosen), least, classes)
        draws = uniform(key(seed, "sizes", label), len(chosen) - 1)
        sizes = low + (draws * max(0, high - low)).astype(np.int64) if low < high else np.full(len(draws), high)
        for client, piece in zip(chosen, np.split(members, np.cumsum(sizes)), strict=True):
            lots[client].append(piece)
    return [np.concatenate(lot) for lot in lots]


def class_quota(samples: int, clients: int, least: int, classes: int) -> tuple[int, int]:
    """Fewest (inclusive) and most (exclusive) samples of a class for all but the last of the clients that share it."""
    return int(max(samples / clients / 10, least / classes)), int(samples / clients)


def by_domain(domain: NDArray[np.int64], domains: int) -> Lots:
    """One client per domain, its samples in their order."""
    return [np.flatnonzero(domain == number) for number in range(domains)]


def split_domains(domain: NDArray[np.int64], domains: int, clients_per_domain: int, seed: int) -> Lots:
    """Every domain shuffled and cut into equal parts, one client each; a domain's clients are neighbours."""
    return [
        part
        for number, lot in enumerate(by_domain(domain, domains))
        for part in np.array_split(lot[permutation(key(seed, "domain", number), len(lot))], clients_per_domain)
    ]


def superclass(
    fine: NDArray[np.int64], coarse: NDArray[np.int64], clients: int, seed: int, cuts: str = "equal"
) -> tuple[Lots, list[set[int]]]:
    """One subclass of every superclass per client.

    In each block of as many clients as a superclass has subclasses (five in CIFAR-100), every superclass deals its
    subclasses at random. With several blocks, each gets one part of every subclass.

    Args:
        fine: ``[n]`` subclass.
        coarse: ``[n]`` superclass.
        clients: a multiple of the number of subclasses in a superclass.
        seed: of every draw.
        cuts: a subclass is cut into ``"equal"`` parts, or at ``"random"`` points (each part has at least one sample).

    Returns:
        Each client's samples, and each client's subclasses.
    """
    families = [np.unique(fine[coarse == label]) for label in range(int(coarse.max()) + 1)]
    size = len(families[0])
    if any(len(family) != size for family in families):
        raise DataError("superclass: every superclass must have the same number of subclasses")
    if clients % size:
        raise DataError(
            f"superclass: {size} subclasses per superclass need a multiple of {size} clients, not {clients}"
        )
    blocks = clients // size
    lots: list[Lots] = [[] for _ in range(clients)]
    owned: list[set[int]] = [set() for _ in range(clients)]
    for number, family in enumerate(families):
        parts = [
            _parts(np.flatnonzero(fine == label), blocks, number, key(seed, "cut", label), cuts) for label in family
        ]
        for block in range(blocks):
            for place, member in enumerate(permutation(key(seed, "subclass", block, number), size).tolist()):
                lots[block * size + place].append(parts[member][block])
                owned[block * size + place].add(int(family[member]))
    return [np.concatenate(lot) for lot in lots], owned


def _parts(members: NDArray[np.int64], count: int, turn: int, draw: int, cuts: str) -> Lots:
    members = members[permutation(draw, len(members))]
    if cuts == "equal":
        parts = np.array_split(members, count)
        # Parts that are one larger go to another block in every superclass, so that blocks stay equal as well.
        return [parts[(place + turn) % count] for place in range(count)]
    if len(members) < count:
        raise DataError(f"superclass: a subclass of {len(members)} samples cannot be cut into {count} parts")
    points = 1 + permutation(key(draw, "points"), len(members) - 1)[: count - 1]
    return np.split(members, np.sort(points))
