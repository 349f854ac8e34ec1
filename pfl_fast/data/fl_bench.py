"""Partitions of FL-bench: a pickled list of sample numbers per client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import Partition
from pfl_fast.data.unpickle import load_plain
from pfl_fast.errors import DataError


def read_fl_bench(file: str | Path, dataset: Dataset) -> Partition:
    """Reads ``partition.pkl``, which indexes the official training and test parts of ``dataset`` one after the other.

    Training clients and those kept for testing only all become clients, in their order.
    """
    file = Path(file)
    try:
        with file.open("rb") as stream:
            content = load_plain(stream, str(file))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give the path of a partition.pkl") from error
    clients = content.get("data_indices") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not all(isinstance(client, dict) for client in clients) or not clients:
        raise DataError(f"{file}: expected a dict with 'data_indices', a list with a dict for each client")
    pooled = np.concatenate([np.flatnonzero(~dataset.test), np.flatnonzero(dataset.test)])

    def column(split: str) -> tuple[NDArray[np.int64], ...]:
        try:
            lists = [np.asarray(client.get(split, []), dtype=np.int64).reshape(-1) for client in clients]
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"{file}: the lists for {split!r} are not sample numbers ({error})") from error
        if any(len(index) and not 0 <= index.min() <= index.max() < len(pooled) for index in lists):
            raise DataError(
                f"{file}: samples outside the {len(pooled)} of {dataset.name}; was it made for another set?"
            )
        return tuple(pooled[index] for index in lists)

    settings = {"dataset": dataset.name, "source": dataset.source, "samples": len(dataset), "from": "FL-bench"}
    return Partition("natural", settings, column("train"), column("test"), column("val"))
