"""Folders written by ``save_to_disk`` of Hugging Face's package ``datasets``, which must be installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.rows import SPLIT_NAMES
from pfl_fast.data.sources.images import resized
from pfl_fast.data.sources.raw import BLOCK, Raw
from pfl_fast.data.sources.tables import CLIENT, LABEL, OTHERS, numbered, raw_of_array
from pfl_fast.errors import DataError

MARKS = ("dataset_dict.json", "dataset_info.json")


def is_hugging_face(folder: Path) -> bool:
    """Returns whether a folder was written by ``save_to_disk``."""
    return any((folder / mark).is_file() for mark in MARKS)


def read(folder: Path, size: int) -> Raw:
    """Reads labels and numbers; images are decoded later."""
    splits = _splits(folder)
    first = next(iter(splits.values()))
    image = next((name for name, kind in first.features.items() if type(kind).__name__ == "Image"), "")
    label = next((name for name, kind in first.features.items() if type(kind).__name__ == "ClassLabel"), "")
    label = label or next((name for name in LABEL if name in first.column_names), "")
    if not label:
        raise DataError(f"{folder}: no column of labels; it has {', '.join(first.column_names)}: rename one to label")
    client = next((name for name in CLIENT if name in first.column_names), "")
    rows = [
        row
        for split in splits.values()
        for row in split.select_columns([n for n in (label, client, "domain") if n in first.column_names])
    ]
    if not rows:
        raise DataError(f"{folder}: no samples in it")
    facts: dict[str, Any] = dict(zip(("y", "classes"), numbered(folder, label, rows), strict=True))
    if names := getattr(first.features[label], "names", None):
        facts |= {"y": np.array([row[label] for row in rows], np.int64), "classes": tuple(names)}
    for column, targets in ((client, ("client", "client_names")), ("domain", ("domain", "domains"))):
        if column in rows[0]:
            facts |= dict(zip(targets, numbered(folder, column, rows), strict=True))
    held_out = "test" if "test" in splits else "validation"
    facts["test"] = np.repeat([name == held_out for name in splits], [len(split) for split in splits.values()])
    if image:
        return Raw((len(rows), size, size, 3), "uint8", lambda: _images(splits, image, size), **facts)
    columns = [name for name in first.column_names if name not in (label, client, *OTHERS)]
    return raw_of_array(
        folder, np.concatenate([_numbers(folder, split, columns) for split in splits.values()]), **facts
    )


def _splits(folder: Path) -> dict[str, Any]:
    """Returns the parts by name, training samples first."""
    try:
        from datasets import load_from_disk
    except ImportError:
        raise DataError(
            f"{folder}: is a folder of Hugging Face's datasets, a package that is not installed: pip install datasets"
        ) from None
    with bounded.reading(folder, "folder of Hugging Face's datasets"):
        found = load_from_disk(str(folder))
    splits = dict(found) if isinstance(found, dict) else {"train": found}
    if unknown := [name for name in splits if name not in SPLIT_NAMES]:
        raise DataError(f"{folder}: has the split {unknown[0]!r}; expected train, test or validation: rename it")
    return {SPLIT_NAMES[name]: split for name, split in splits.items()}


def _images(splits: dict[str, Any], column: str, size: int) -> Iterator[NDArray[Any]]:
    for split in splits.values():
        for start in range(0, len(split), BLOCK):
            images = split[start : start + BLOCK][column]
            yield np.concatenate([resized(np.asarray(image.convert("RGB"))[None], size, 3) for image in images])


def _numbers(folder: Path, split: Any, columns: list[str]) -> NDArray[Any]:
    arrays = [bounded.plain_array(split[:][name], folder, f"values of the column {name!r}") for name in columns]
    if len(arrays) == 1:
        return arrays[0] if arrays[0].ndim > 1 else arrays[0][:, None]
    if not arrays or any(array.ndim > 1 for array in arrays):
        raise DataError(f"{folder}: expected one column of images or lists, or columns of numbers; it has {columns}")
    return np.stack([array.astype(np.float64) for array in arrays], 1)
