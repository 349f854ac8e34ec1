"""Partitions from lists of sample numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition import splits
from pfl_fast.data.partition.record import Partition
from pfl_fast.data.partition_spec import PartitionSpec, default_test_fraction
from pfl_fast.errors import DataError

ACCEPTED = (
    "the name of a rule, the folder of a saved partition, a .csv or .json file, a pfl_fast.Partition, or a list with "
    "one list of sample numbers, or one pair (train, test) of lists, for each client"
)


def partition_from_lists(
    lists: object, dataset: Dataset, spec: PartitionSpec, names: tuple[str, ...] = ()
) -> Partition:
    """Returns the partition of clients whose samples are listed.

    Args:
        lists: sample numbers of each client, of which ``test_fraction`` are held out for tests; training and test
            samples of each client; or training, test and validation samples of each client.
        dataset: data set that the numbers refer to.
        spec: test_fraction, validation, per_client, draw_clients and seeds are used.
        names: names of the clients.
    """
    if isinstance(lists, (str, bytes, dict)) or not isinstance(lists, Iterable):
        raise TypeError(f"partition: must be {ACCEPTED}; got {type(lists).__name__}")
    clients = list(lists)
    in_pairs = [_is_pair(client) for client in clients]
    if not clients or any(in_pairs) != all(in_pairs):
        raise TypeError(f"partition: must be {ACCEPTED}; got {'some of both' if clients else 'no clients'}")
    if spec.clients not in (None, len(clients)):
        raise DataError(f"clients: {spec.clients}, but partition lists {len(clients)} clients; leave clients out")
    seed = spec.seed if spec.partition_seed is None else spec.partition_seed
    held_out = default_test_fraction("lists") if spec.test_fraction is None else spec.test_fraction
    valid: list[NDArray[np.int64]] = []
    if in_pairs[0]:
        train, tests = ([_indices(c[s], n, dataset) for n, c in enumerate(clients)] for s in (0, 1))
        valid = [_indices(c[2], n, dataset) for n, c in enumerate(clients) if len(c) > 2]
    else:
        indices = [_indices(client, number, dataset) for number, client in enumerate(clients)]
        train, tests = splits.split(indices, held_out, seed)
    for number, (own, other) in enumerate(zip(train, tests, strict=True)):
        if not len(own) or np.intersect1d(own, other).size:
            raise DataError(f"partition: client {number} has no training samples, or trains on samples of its test")
    if not valid:
        train, valid = splits.split_validation(train, spec.validation, seed)
    if spec.per_client is not None:
        train = splits.limit(train, spec.per_client, seed)
    settings = {"dataset": dataset.name, "source": dataset.source, "samples": len(dataset)}
    result = Partition("lists", settings, tuple(train), tuple(tests), tuple(valid), names)
    return result if spec.draw_clients is None else result.draw(spec.draw_clients, seed)


def _is_pair(client: Any) -> bool:
    return isinstance(client, (tuple, list)) and len(client) in (2, 3) and all(not np.isscalar(part) for part in client)


def _indices(values: Any, client: int, dataset: Dataset) -> NDArray[np.int64]:
    try:
        index = np.asarray(values if len(values) else np.zeros(0, np.int64))
    except (TypeError, ValueError):  # a number, or rows of different lengths
        index = np.zeros((), float)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise TypeError(f"partition: must be {ACCEPTED}; client {client} has no list of whole numbers")
    if len(index) and (index.min() < 0 or index.max() >= len(dataset) or len(np.unique(index)) < len(index)):
        raise DataError(
            f"partition: client {client} lists samples {index.min()} to {index.max()}; expected each sample once, from "
            f"0 to {len(dataset) - 1}"
        )
    return index.astype(np.int64)
