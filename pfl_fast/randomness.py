"""Random numbers. A draw is a pure function of a key; a key is a hash of (seed, purpose, client, round, ...).

Executor, threads, devices, the order of clients and resuming therefore cannot change a draw. Only the raw bits of
NumPy's Philox generator are used, which are the same in every version of NumPy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray


def key(seed: int, purpose: str, *numbers: int) -> int:
    """Returns a 63-bit key for one purpose, for example ``key(seed, "order", client, round, epoch)``.

    >>> key(0, "order", 3, 1) == key(0, "order", 3, 1), key(0, "order", 3, 1) == key(0, "order", 1, 3)
    (True, False)
    """
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def bits(key: int, count: int) -> NDArray[np.uint64]:
    """Returns ``count`` random 64-bit numbers."""
    return np.random.Philox(key=key).random_raw(count)


def uniform(key: int, count: int) -> NDArray[np.float64]:
    """Returns ``count`` uniform numbers in [0, 1) with 53 random bits."""
    return np.asarray((bits(key, count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """Returns a random permutation of 0 to count - 1.

    >>> sorted(permutation(7, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(bits(key, count), kind="stable")


def generator(key: int) -> np.random.Generator:
    """Returns a NumPy generator, whose draws may depend on NumPy's version (partitions, generated data)."""
    return np.random.Generator(np.random.Philox(key=key))


@contextmanager
def torch_seed(key: int) -> Iterator[None]:
    """Seeds torch's CPU generator with ``key`` inside the block and restores its state afterwards.

    >>> with torch_seed(7):
    ...     first = torch.rand(2)
    >>> with torch_seed(7):
    ...     torch.equal(first, torch.rand(2))
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        yield
