"""Partition rules: pure functions from labels, domains and a seed to the sample indices of each client."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pfl_fast.errors import DataError
from pfl_fast.randomness import generator, key, permutation, uniform

ClientIndices = list[NDArray[np.int64]]  # sample indices of each client
TRIES = 10  # draws of dirichlet before the best one is rebalanced


def iid(samples: int, clients: int, seed: int) -> ClientIndices:
    """Splits the shuffled samples evenly; sizes differ by at most one.

    >>> [len(index) for index in iid(7, 3, seed=0)]
    [3, 2, 2]
    """
    return np.array_split(permutation(key(seed, "iid"), samples), clients)


def dirichlet(y: NDArray[np.int64], clients: int, beta: float, seed: int, min_samples: int = 1) -> ClientIndices:
    """Dirichlet label skew: splits each class over clients by proportions drawn from Dirichlet(beta, ..., beta).

    A client that holds its equal share of all samples gets no samples of later classes. If a client has fewer than
    ``min_samples`` samples, all classes are drawn again; after ten draws the largest clients give samples to it.

    Args:
        y: ``[n]`` labels.
        clients: number of clients.
        beta: concentration; smaller is more skewed.
        seed: random seed.
        min_samples: minimum number of samples per client; ``clients * min_samples`` may not exceed n.
    """
    check_enough_samples(clients, min_samples, len(y))
    best, fewest = [], -1
    for attempt in range(TRIES):
        indices = _dirichlet_once(y, clients, beta, key(seed, "dirichlet", attempt))
        smallest = min(map(len, indices))
        if smallest > fewest:
            best, fewest = indices, smallest
        if fewest >= min_samples:
            break
    return _rebalanced(best, min_samples)


def check_enough_samples(clients: int, min_samples: int, samples: int) -> None:
    """Raises if there are fewer samples than all clients together need."""
    if clients * min_samples > samples:
        raise DataError(
            f"{clients} clients with at least {min_samples} samples each need {clients} x {min_samples} = "
            f"{clients * min_samples} samples, but there are {samples}; take at most "
            f"{samples // max(1, min_samples)} clients, or lower min_samples"
        )


def _dirichlet_once(y: NDArray[np.int64], clients: int, beta: float, draw: int) -> ClientIndices:
    random = generator(draw)
    indices: list[ClientIndices] = [[] for _ in range(clients)]
    held = np.zeros(clients, dtype=np.int64)
    for label in range(int(y.max()) + 1):
        members = random.permutation(np.flatnonzero(y == label))
        open_ = held < len(y) / clients
        # A tiny beta underflows to 0 or NaN for all open clients: they share the class equally.
        shares = np.nan_to_num(random.dirichlet(np.full(clients, beta))) * open_
        shares = shares / shares.sum() if shares.sum() > 0 else open_ / open_.sum()
        pieces = np.split(members, (np.cumsum(shares)[:-1] * len(members)).astype(np.int64))
        for index, piece in zip(indices, pieces, strict=True):
            index.append(piece)
        held += [len(piece) for piece in pieces]
    return [np.concatenate(index) for index in indices]


def _rebalanced(indices: ClientIndices, min_samples: int) -> ClientIndices:
    indices = list(indices)
    for client in range(len(indices)):
        while len(indices[client]) < min_samples:
            donor = int(np.argmax([len(index) for index in indices]))
            count = min(min_samples - len(indices[client]), len(indices[donor]) - min_samples)
            indices[donor], given = np.split(indices[donor], [len(indices[donor]) - count])
            indices[client] = np.concatenate([indices[client], given])
    return indices


def pathological(
    y: NDArray[np.int64], clients: int, classes_per_client: int, seed: int, min_samples: int = 1
) -> ClientIndices:
    """Gives each client ``classes_per_client`` classes; clients with the same class get unequal parts of it.

    Classes are assigned in random order to the clients that lack most classes, so that the numbers of clients per class
    differ by at most one. Of m clients that share n samples, m - 1 get a number uniform in
    ``[max(n / m / 10, min_samples / classes), n / m)`` and the last one gets the rest.
    """
    classes = int(y.max()) + 1
    if classes_per_client > classes:
        raise DataError(f"{classes_per_client} classes per client, but there are only {classes} classes")
    lacking = np.full(clients, classes_per_client)
    indices: list[ClientIndices] = [[np.zeros(0, dtype=np.int64)] for _ in range(clients)]
    ends = np.arange(classes + 1) * clients * classes_per_client // classes
    for place, label in enumerate(permutation(key(seed, "classes"), classes).tolist()):
        chosen = np.sort(np.argsort(-lacking, kind="stable")[: ends[place + 1] - ends[place]])
        if len(chosen) == 0:
            continue
        lacking[chosen] -= 1
        members = np.flatnonzero(y == label)
        members = members[permutation(key(seed, "members", label), len(members))]
        low, high = class_quota(len(members), len(chosen), min_samples, classes)
        draws = uniform(key(seed, "sizes", label), len(chosen) - 1)
        sizes = low + (draws * max(0, high - low)).astype(np.int64) if low < high else np.full(len(draws), high)
        for client, piece in zip(chosen, np.split(members, np.cumsum(sizes)), strict=True):
            indices[client].append(piece)
    return [np.concatenate(index) for index in indices]


def class_quota(samples: int, clients: int, min_samples: int, classes: int) -> tuple[int, int]:
    """Returns minimum (inclusive) and maximum (exclusive) samples of a class for all but the last of its clients."""
    return int(max(samples / clients / 10, min_samples / classes)), int(samples / clients)


def by_domain(domain: NDArray[np.int64], domains: int) -> ClientIndices:
    """Gives each client one domain, samples in order."""
    return [np.flatnonzero(domain == number) for number in range(domains)]


def split_domains(domain: NDArray[np.int64], domains: int, clients_per_domain: int, seed: int) -> ClientIndices:
    """Shuffles each domain and splits it evenly over neighbouring clients."""
    return [
        part
        for number, index in enumerate(by_domain(domain, domains))
        for part in np.array_split(index[permutation(key(seed, "domain", number), len(index))], clients_per_domain)
    ]


def superclass(
    fine: NDArray[np.int64], coarse: NDArray[np.int64], clients: int, seed: int, cuts: str = "equal"
) -> tuple[ClientIndices, list[set[int]]]:
    """Gives each client one subclass of every superclass.

    Clients form blocks, with as many clients as a superclass has subclasses (five in CIFAR-100). In each block, the
    subclasses of every superclass are assigned at random. Several blocks get one part of every subclass each.

    Args:
        fine: ``[n]`` subclass.
        coarse: ``[n]`` superclass.
        clients: number of clients, a multiple of the number of subclasses in a superclass.
        seed: random seed.
        cuts: parts of a subclass: ``"equal"``, or cut at ``"random"`` points (each part has at least one sample).

    Returns:
        Sample indices of each client, and subclasses of each client.
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
    indices: list[ClientIndices] = [[] for _ in range(clients)]
    owned: list[set[int]] = [set() for _ in range(clients)]
    for number, family in enumerate(families):
        parts = [
            _parts(np.flatnonzero(fine == label), blocks, number, key(seed, "cut", label), cuts) for label in family
        ]
        for block in range(blocks):
            for place, member in enumerate(permutation(key(seed, "subclass", block, number), size).tolist()):
                indices[block * size + place].append(parts[member][block])
                owned[block * size + place].add(int(family[member]))
    return [np.concatenate(index) for index in indices], owned


def _parts(members: NDArray[np.int64], count: int, turn: int, draw: int, cuts: str) -> ClientIndices:
    members = members[permutation(draw, len(members))]
    if cuts == "equal":
        parts = np.array_split(members, count)
        # Rotates the parts that are one sample larger over the blocks, so that blocks stay equal, too.
        return [parts[(place + turn) % count] for place in range(count)]
    if len(members) < count:
        raise DataError(f"superclass: a subclass of {len(members)} samples cannot be cut into {count} parts")
    points = 1 + permutation(key(draw, "points"), len(members) - 1)[: count - 1]
    return np.split(members, np.sort(points))
