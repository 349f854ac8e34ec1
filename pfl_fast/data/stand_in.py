"""Generated stand-ins for missing data sets, marked in ``source`` and in all results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pfl_fast.data.catalogue import DATASETS
from pfl_fast.data.dataset import STAND_IN, SYNTHETIC, Dataset
from pfl_fast.data.sources.names import CIFAR100_COARSE, COARSE_OF_FINE
from pfl_fast.data.synthetic import synthetic

SAMPLES = 6000
MOST_BYTES = 1 << 28


def stand_in(name: str, size: int, samples: int | None, seed: int) -> Dataset:
    """Generates a data set with the shape, classes and domains of the real one, and fewer samples.

    Args:
        name: name in the catalogue.
        size: height and width of images, or number of tokens.
        samples: number of samples; None: 6000, or as many as fit into 256 MB.
        seed: random seed.
    """
    entry = DATASETS[name]
    fine = DATASETS[entry.base] if entry.base else entry
    shape = entry.shape(size)
    if samples is None:
        samples = max(1, min(SAMPLES, MOST_BYTES // int(np.prod(shape))))
    data = synthetic(
        samples,
        shape,
        fine.classes,
        domains=entry.domains,
        seed=seed,
        modality=entry.modality,
        vocabulary=entry.vocabulary,
        name=name,
    )
    data = replace(
        data,
        mean=entry.mean,
        std=entry.std,
        test=data.test & entry.official_test,
        source=STAND_IN if entry.sources else SYNTHETIC,
    )
    if entry.base:
        data.labels.update(fine=data.y, coarse=np.array(COARSE_OF_FINE, np.int64)[data.y])
        return data.relabel("coarse", CIFAR100_COARSE) if entry.labelling else data
    return data
