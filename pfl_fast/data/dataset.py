"""A data set as flat arrays, in memory or memory-mapped. Partitions hold indices into them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.samples import standard_samples
from pfl_fast.errors import DataError, did_you_mean

REAL, STAND_IN, SYNTHETIC, IMPORTED = "real", "synthetic stand-in", "synthetic", "imported"


@dataclass(frozen=True)
class Dataset:
    """All samples of a data set, official training and test parts together.

    Takes arrays and lists, converts them to the dtypes below, and checks them.

    Attributes:
        name: name in the catalogue, or of an imported data set.
        x: ``[N, H, W, C]`` uint8 images, ``[N, L]`` int32 tokens (0 is padding), or ``[N, ...]`` float32 features.
        y: ``[N]`` int64 labels, from 0.
        classes: names of the labels. Default: their numbers.
        test: ``[N]`` bool, True for samples of the official test part. Default: none of them.
        mean: mean of each channel, for values scaled to [0, 1]; images only. Default: 0.5.
        std: standard deviation of each channel, for values scaled to [0, 1]; images only. Default: 0.5.
        domain: ``[N]`` int64 domain of each sample, or None.
        domains: names of the domains.
        labels: other labellings ``[N]`` by name, such as CIFAR-100's ``"fine"`` and ``"coarse"``.
        vocabulary: number of different tokens; text only.
        pools_test: True if random splits include the official test part; the papers leave out the validation images of
            Tiny-ImageNet.
        natural: ``(train, test)`` indices of each client of imported data, or None.
        client_names: names of the clients in ``natural``; empty: they have numbers.
        files: file of each sample, if the data set was read from one file per sample.
        source: ``"real"``, ``"synthetic stand-in"`` (generated because the real data is missing), ``"synthetic"`` or
            ``"imported"``; recorded with every result.

    Raises:
        DataError: naming the argument that cannot be used.

    >>> Dataset("mine", [[0.5, 1.0], [2.0, 3.5]], [0, 1]).classes
    ('0', '1')
    >>> Dataset("mine", [[0.5, 1.0], [2.0, 3.5]], [0, 2], classes=("cat", "dog"))
    Traceback (most recent call last):
    pfl_fast.errors.DataError: mine: y has the label 2, but classes has 2 names, for labels 0 to 1
    """

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...] = ()
    test: NDArray[np.bool_] = None  # type: ignore[assignment]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    domain: NDArray[np.int64] | None = None
    domains: tuple[str, ...] = ()
    labels: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    vocabulary: int = 0
    pools_test: bool = True
    natural: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] | None = None
    source: str = REAL
    client_names: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        x, y = standard_samples(self.x, f"{self.name}: x"), labels_of(self.y, self.name)
        count = len(y)
        if len(x) != count:
            raise DataError(f"{self.name}: x has {len(x)} samples, but y has {count} labels; expected as many")
        largest = int(y.max(initial=-1))
        classes = tuple(map(str, self.classes)) or tuple(map(str, range(largest + 1)))
        if largest >= len(classes):
            raise DataError(
                f"{self.name}: y has the label {largest}, but classes has {len(classes)} names, for labels 0 to "
                f"{len(classes) - 1}"
            )
        test = np.zeros(count, np.bool_) if self.test is None else self._column("test", self.test, "iub", count)
        domain = None if self.domain is None else self._column("domain", self.domain, "iu", count)
        domains = tuple(map(str, self.domains))
        if domain is not None and count and not 0 <= domain.min() <= domain.max() < len(domains):
            raise DataError(
                f"{self.name}: domain has numbers from {domain.min()} to {domain.max()}, but domains has "
                f"{len(domains)} names"
            )
        labels = {name: self._column(f"labels[{name!r}]", own, "iu", count) for name, own in self.labels.items()}
        if self.files and len(self.files) != count:
            raise DataError(f"{self.name}: files has {len(self.files)} names for {count} samples; expected as many")
        facts: dict[str, Any] = {"x": x, "y": y, "classes": classes, "test": test.astype(np.bool_)}
        facts |= {"domain": None if domain is None else domain.astype(np.int64), "domains": domains}
        facts |= {"labels": {name: own.astype(np.int64) for name, own in labels.items()}}
        if x.dtype == np.uint8:
            facts |= {name: self._per_channel(name, x.shape[-1]) for name in ("mean", "std")}
        if x.dtype == np.int32 and not self.vocabulary:
            facts["vocabulary"] = vocabulary_of(x, self.name)
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def _column(self, name: str, values: Any, kinds: str, count: int) -> NDArray[Any]:
        array = np.asarray(values)
        if array.shape != (count,) or (array.dtype.kind not in kinds and count):
            what = "booleans" if "b" in kinds else "whole numbers"
            raise DataError(
                f"{self.name}: {name} has shape {list(array.shape)} and dtype {array.dtype}; expected {count} {what}, "
                "one for each sample"
            )
        return array

    def _per_channel(self, name: str, channels: int) -> tuple[float, ...]:
        values = tuple(float(value) for value in getattr(self, name)) or (0.5,) * channels
        if len(values) != channels or not np.isfinite(values).all() or (name == "std" and min(values) <= 0):
            raise DataError(f"{self.name}: {name} is {values}; expected a number for each of the {channels} channels")
        return values

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


def labels_of(values: Any, name: str) -> NDArray[np.int64]:
    """Returns labels ``[n]`` or ``[n, 1]`` as ``[n]`` int64; raises unless they are whole numbers from 0."""
    y = bounded.whole_numbers(values, name, "labels (y)")
    if y.size != len(y):
        raise DataError(f"{name}: labels (y) of shape {list(y.shape)}, one-hot?; expected [n]: convert them by argmax")
    y = y.reshape(-1)
    if y.size and y.min() < 0:
        raise DataError(f"{name}: y has the label {y.min()}; expected labels from 0")
    bounded.check_count(name, int(y.max(initial=-1)) + 1, len(y), "classes")
    return y


def vocabulary_of(x: NDArray[np.int32], name: str) -> int:
    """Returns the number of tokens of ``[N, L]`` tokens; raises if the largest is out of proportion."""
    vocabulary = int(x.max(initial=0)) + 1
    bounded.check_count(name, vocabulary, x.size, "tokens", free=bounded.FREE_TOKENS)
    return vocabulary
