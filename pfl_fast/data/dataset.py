"""A data set as flat arrays, in memory or memory-mapped. Partitions hold indices into them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.errors import DataError, did_you_mean

REAL, STAND_IN, SYNTHETIC, IMPORTED = "real", "synthetic stand-in", "synthetic", "imported"


@dataclass(frozen=True)
class Dataset:
    """All samples of a data set, official training and test parts together.

    Attributes:
        name: name in the catalogue, or of an imported data set.
        x: ``[N, H, W, C]`` uint8 images, ``[N, L]`` int32 tokens (0 is padding), or ``[N, ...]`` float32 features.
        y: ``[N]`` int64 labels.
        classes: names of the labels.
        test: ``[N]`` bool, True for samples of the official test part.
        mean: mean of each channel, for values scaled to [0, 1]; images only.
        std: standard deviation of each channel, for values scaled to [0, 1]; images only.
        domain: ``[N]`` int64 domain of each sample, or None.
        domains: names of the domains.
        labels: other labellings ``[N]`` by name, such as CIFAR-100's ``"fine"`` and ``"coarse"``.
        vocabulary: number of different tokens; text only.
        pools_test: True if random splits include the official test part; the papers leave out the validation images of
            Tiny-ImageNet.
        natural: ``(train, test)`` indices of each client of imported data, or None.
        source: ``"real"``, ``"synthetic stand-in"`` (generated because the real data is missing), ``"synthetic"`` or
            ``"imported"``; recorded with every result.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    test: NDArray[np.bool_]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    domain: NDArray[np.int64] | None = None
    domains: tuple[str, ...] = ()
    labels: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    vocabulary: int = 0
    pools_test: bool = True
    natural: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] | None = None
    source: str = REAL

    def __len__(self) -> int:
        return len(self.y)

    @property
    def modality(self) -> str:
        """``"images"``, ``"text"`` or ``"features"``."""
        return {"uint8": "images", "int32": "text"}.get(str(self.x.dtype), "features")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model receives it: ``(C, H, W)``, ``(L,)`` or the shape of the features."""
        if self.modality == "images":
            height, width, channels = self.x.shape[1:]
            return (channels, height, width)
        return tuple(self.x.shape[1:])

    def relabel(self, labelling: str, classes: tuple[str, ...]) -> Dataset:
        """Returns the same samples with another labelling of ``labels``."""
        if labelling not in self.labels:
            hint = did_you_mean(labelling, self.labels)
            raise DataError(f"{self.name}: no labelling {labelling!r} (there is {', '.join(self.labels)}){hint}")
        return replace(self, y=self.labels[labelling], classes=classes)
