"""Every draw is a pure function of a key, and a key of (seed, purpose, numbers such as client, round and epoch).

So executor, threads, devices, the order of clients and resuming cannot change a draw. Only the raw bits of NumPy's
Philox are used, which are the same in every version of NumPy; what is made of them is written here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray


def key(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit key for one purpose, for example ``key(seed, "order", client, round, epoch)``.

    >>> key(0, "order", 3, 1) == key(0, "order", 3, 1), key(0, "order", 3, 1) == key(0, "order", 1, 3)
    (True, False)
    """
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def bits(key: int, count: int) -> NDArray[np.uint64]:
    """``count`` random 64-bit numbers."""
    return np.random.Philox(key=key).random_raw(count)


def uniform(key: int, count: int) -> NDArray[np.float64]:
    """``count`` numbers in [0, 1), all 53 bits of them random."""
    return np.asarray((bits(key, count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """The numbers 0 to count - 1 in random order.

    >>> sorted(permutation(7, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(bits(key, count), kind="stable")


def generator(key: int) -> np.random.Generator:
    """NumPy's own distributions, where their exact draws may follow NumPy's version (partitions, generated data)."""
    return np.random.Generator(np.random.Philox(key=key))


@contextmanager
def torch_seed(key: int) -> Iterator[None]:
    """Torch's CPU generator starts from ``key`` inside the block, and outside it nothing is noticed.

    >>> with torch_seed(7):
    ...     first = torch.rand(2)
    >>> with torch_seed(7):
    ...     torch.equal(first, torch.rand(2))
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        yield
