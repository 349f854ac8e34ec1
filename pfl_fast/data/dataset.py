"""A data set, in memory or memory-mapped: flat arrays. Partitions index into them, batches are taken from them."""

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
        name: as in the catalogue.
        x: ``[N, H, W, C]`` uint8 images, ``[N, L]`` int32 tokens (0 is padding), or ``[N, ...]`` float32 features.
        y: ``[N]`` int64 labels.
        classes: what the labels mean.
        test: ``[N]`` bool, whether a sample belongs to the official test part.
        mean: per channel, of the values scaled to [0, 1]; images only.
        std: likewise.
        domain: ``[N]`` int64, for sets that consist of domains.
        domains: their names.
        labels: other labellings ``[N]`` by name, such as CIFAR-100's ``"fine"`` and ``"coarse"``.
        vocabulary: number of different tokens; text only.
        pools_test: whether official test samples join the others when clients' samples are split anew; the papers leave
            Tiny-ImageNet's validation images out.
        natural: for imported data, each client's ``(train, test)`` samples as they came.
        source: ``"real"``, ``"synthetic stand-in"`` (generated, because the real data was not there), ``"synthetic"``
            or ``"imported"``; goes into every result.
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
    def kind(self) -> str:
        """``"images"``, ``"text"`` or ``"features"``."""
        return {"uint8": "images", "int32": "text"}.get(str(self.x.dtype), "features")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What a model gets for one sample: ``(C, H, W)``, ``(L,)`` or the features' own shape."""
        if self.kind == "images":
            height, width, channels = self.x.shape[1:]
            return (channels, height, width)
        return tuple(self.x.shape[1:])

    def relabel(self, labelling: str, classes: tuple[str, ...]) -> Dataset:
        """The same samples under another of ``labels``."""
        if labelling not in self.labels:
            hint = did_you_mean(labelling, self.labels)
            raise DataError(f"{self.name}: no labelling {labelling!r} (there is {', '.join(self.labels)}){hint}")
        return replace(self, y=self.labels[labelling], classes=classes)
