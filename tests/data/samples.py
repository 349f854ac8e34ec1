"""Small data sets to test with."""

import numpy as np

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import PartitionSpec, make_partition


def partitioned(dataset, rule, **options):
    """A partition by a rule, other options at their defaults."""
    return make_partition(dataset, PartitionSpec(rule, **options))


def images(y, *, shape=(6, 5, 3), test=None, seed=0, **fields):
    """A data set of random uint8 images with these labels."""
    y = np.asarray(y, dtype=np.int64)
    x = np.random.default_rng(seed).integers(0, 256, (len(y), *shape), dtype=np.uint8)
    return labelled(y, x=x, test=test, mean=(0.5,) * shape[-1], std=(0.25,) * shape[-1], **fields)


def labelled(y, *, x=None, test=None, **fields):
    """A data set with these labels; its features are the sample numbers."""
    y = np.asarray(y, dtype=np.int64)
    return Dataset(
        "toy",
        np.arange(len(y), dtype=np.float32)[:, None] if x is None else x,
        y,
        tuple(f"class {k}" for k in range(int(y.max(initial=0)) + 1)),
        np.zeros(len(y), dtype=bool) if test is None else np.asarray(test, dtype=bool),
        **fields,
    )


def cifar100_like(per_class=6, tests=2):
    """20 superclasses of 5 subclasses, ``per_class`` training and ``tests`` test samples of each."""
    fine = np.repeat(np.arange(100), per_class + tests)
    test = np.tile(np.arange(per_class + tests) >= per_class, 100)
    coarse = (fine * 7 % 100) // 5
    return labelled(coarse, test=test, labels={"fine": fine, "coarse": coarse})
