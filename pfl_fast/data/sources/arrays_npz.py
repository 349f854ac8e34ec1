"""Own arrays in an npz file: ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

With ``x`` and ``y`` there may be ``test`` (True for test samples), ``client`` and ``domain`` (numbers or names of each
sample), and in both cases ``classes`` (names of the labels).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.dataset import labels_of
from pfl_fast.data.sources.npz import read_npz
from pfl_fast.data.sources.raw import Raw
from pfl_fast.data.sources.tables import ordered, raw_of_array
from pfl_fast.errors import DataError

PARTS = ("x_train", "y_train", "x_test", "y_test")


def read(file: Path, _size: int) -> Raw:
    """Reads all arrays."""
    arrays = read_npz(file)
    if set(PARTS) <= arrays.keys():
        joined = {name: _joined(file, arrays[f"{name}_train"], arrays[f"{name}_test"], name) for name in "xy"}
        counts = [len(arrays["y_train"]), len(arrays["y_test"])]
        arrays = {**arrays, **joined, "test": np.repeat([False, True], counts)}
    if not {"x", "y"} <= arrays.keys():
        raise DataError(f"{file}: expected x and y, or {', '.join(PARTS)}; it has {', '.join(arrays) or 'nothing'}")
    y = labels_of(arrays["y"], str(file))
    for name in ("x", "test", "client", "domain"):
        if name in arrays and (not arrays[name].ndim or len(arrays[name]) != len(y)):
            raise DataError(f"{file}: {name} has shape {list(arrays[name].shape)}; expected {len(y)} entries, as y has")
    classes = tuple(str(name) for name in arrays.get("classes", range(int(y.max(initial=-1)) + 1)))
    facts: dict[str, Any] = {"y": y, "classes": classes}
    facts["test"] = arrays.get("test", np.zeros(len(y), np.bool_)).astype(np.bool_)
    for name, names in (("client", "client_names"), ("domain", "domains")):
        if name in arrays:
            facts[names] = ordered(arrays[name].astype(str).tolist())
            number = {text: position for position, text in enumerate(facts[names])}
            facts[name] = np.array([number[text] for text in arrays[name].astype(str).tolist()], np.int64)
    return raw_of_array(file, arrays["x"], **facts)


def _joined(file: Path, train: NDArray[Any], test: NDArray[Any], name: str) -> NDArray[Any]:
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        shapes = [f"{part.dtype} {list(part.shape)}" for part in (train, test)]
        raise DataError(f"{file}: {name}_train is {shapes[0]}, {name}_test {shapes[1]}; expected samples of one kind")
    return np.concatenate([train, test])
