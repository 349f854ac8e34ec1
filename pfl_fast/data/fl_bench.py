"""Partitions of FL-bench: ``partition.pkl``, a pickled list with the sample indices of each client."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data import bounded
from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import Partition
from pfl_fast.data.unpickle import load_plain
from pfl_fast.errors import DataError


def read_fl_bench(path: str | Path, dataset: Dataset) -> Partition:
    """Reads a partition that ``generate_data.py`` of FL-bench wrote for the same data set.

    Indices count the official training part first, then the official test part. If ``all_stats.json`` is next to the
    partition, the labels of each client are compared with it, because FL-bench may order a data set differently.

    Args:
        path: ``partition.pkl``, or the folder that holds it.
        dataset: data set of the partition.
    """
    file = Path(path, "partition.pkl") if Path(path).is_dir() else Path(path)
    content = load_plain(bounded.read_file(file), str(file))
    clients = content.get("data_indices") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not all(isinstance(client, dict) for client in clients) or not clients:
        raise DataError(f"{file}: expected a dict with 'data_indices', a list with a dict for each client")
    pooled = np.concatenate([np.flatnonzero(~dataset.test), np.flatnonzero(dataset.test)])

    def column(split: str) -> tuple[NDArray[np.int64], ...]:
        what = f"sample indices for {split!r}"
        lists = [bounded.whole_numbers(client.get(split, []), file, what).reshape(-1) for client in clients]
        if any(len(index) and not 0 <= index.min() <= index.max() < len(pooled) for index in lists):
            raise DataError(
                f"{file}: indices outside the {len(pooled)} samples of {dataset.name}; made for another data set?"
            )
        return tuple(pooled[index] for index in lists)

    settings = {"dataset": dataset.name, "source": dataset.source, "samples": len(dataset), "from": "FL-bench"}
    result = Partition("natural", settings, column("train"), column("test"), column("val"))
    if empty := [client for client, index in enumerate(result.train) if not len(index)]:
        raise DataError(
            f"{file}: client {empty[0]} has no training samples ({len(empty)} such clients); "
            "generate it with --split sample"
        )
    _check_labels(file.with_name("all_stats.json"), result, dataset)
    return result


def _check_labels(file: Path, partition: Partition, dataset: Dataset) -> None:
    if not file.is_file():
        return
    try:
        stats: dict[str, Any] = json.loads(file.read_text())
        expected = [stats.get(str(client), {}).get("y", {}) for client in range(partition.clients)]
        counts = [{int(label): int(count) for label, count in labels.items() if count} for labels in expected]
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return  # other versions of FL-bench name the classes instead of numbering them
    splits = zip(partition.train, partition.test, partition.validation, strict=True)
    for client, (count, index) in enumerate(zip(counts, splits, strict=True)):
        found = dict(Counter(dataset.y[np.concatenate(index)].tolist()))
        if count and found != count:
            raise DataError(
                f"{file}: client {client} has labels {count}, but its samples of {dataset.name} have {found}; "
                "FL-bench's data set has other samples or another order"
            )
