"""Partitions from a ``.csv`` or ``.json`` file that names the client of each sample.

CSV, with names of columns in the first row, and JSON lists of objects with the same names:

    file,client,split             index: number of the sample, from 0, instead of file
    cat/1.jpg,north,train         split: train, test or validation; without it, test_fraction of each client is held out
    dog/7.jpg,south,test

JSON objects: ``{"north": [0, 1], "south": [2, 3]}`` or ``{"north": {"train": [0], "test": [1]}, ...}``; the entries are
numbers or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_fast.data.dataset import Dataset
from pfl_fast.data.partition.own_lists import partition_from_lists
from pfl_fast.data.partition.record import SPLITS, Partition
from pfl_fast.data.partition_spec import PartitionSpec
from pfl_fast.data.rows import SPLIT_NAMES, read_json, read_rows
from pfl_fast.errors import DataError, DataRequestError, did_you_mean

Row = tuple[Any, str, str | None]  # sample, client, split


def is_split_file(name: str) -> bool:
    """Returns whether a partition is named by its file.

    >>> is_split_file("split.csv"), is_split_file("dirichlet")
    (True, False)
    """
    return name.lower().endswith((".csv", ".json"))


def partition_from_file(file: Path, dataset: Dataset, spec: PartitionSpec) -> Partition:
    """Returns the partition in a file; clients are in the order of their first sample.

    Args:
        file: ``.csv`` or ``.json`` file.
        dataset: data set that the file is about.
        spec: see :func:`~pfl_fast.data.partition.own_lists.partition_from_lists`.
    """
    if not file.is_file():
        raise DataRequestError(f"partition: {file} does not exist; expected a .csv or .json file with client and split")
    rows = _rows(file)
    named = [split is not None for _, _, split in rows]
    if not rows or any(named) != all(named):
        raise DataError(f"{file}: {'some rows have no split' if rows else 'no samples in it'}; complete the file")
    numbers = _sample_numbers(file, [sample for sample, _, _ in rows], dataset)
    clients: dict[str, dict[str, list[int]]] = {}
    for number, (_, client, split) in zip(numbers, rows, strict=True):
        clients.setdefault(client, {name: [] for name in SPLITS})[split or "train"].append(number)
    if untested := [name for name, own in clients.items() if named[0] and not own["test"]]:
        raise DataError(
            f"{file}: client {untested[0]} has no test samples ({len(untested)} such clients); add rows with split "
            "test, or leave the column out"
        )
    if untrained := [name for name, own in clients.items() if not own["train"]]:
        raise DataError(f"{file}: client {untrained[0]} has no training samples ({len(untrained)} such clients)")
    lists = [[own[split] for split in SPLITS] if named[0] else own["train"] for own in clients.values()]
    if named[0] and not any(own["validation"] for own in clients.values()):
        lists = [own[:2] for own in lists]
    return partition_from_lists(lists, dataset, spec, tuple(clients))


def _rows(file: Path) -> list[Row]:
    content = read_json(file) if file.suffix.lower() == ".json" else None
    if isinstance(content, dict):
        if {"format", "sizes", "hash"} <= content.keys():
            raise DataError(f"{file}: part of a saved partition; give its folder, --partition {file.parent}")
        return [row for client, own in content.items() for row in _rows_of_client(file, str(client), own)]
    rows = read_rows(file, content)
    names = list(rows[0]) if rows else []
    column = next((name for name in ("file", "index") if name in names), "")
    if rows and (not column or "client" not in names):
        raise DataError(f"{file}: needs the columns client, and file or index; it has {', '.join(names)}")
    return [(row.get(column), str(row.get("client")), _split(file, row.get("split"))) for row in rows]


def _rows_of_client(file: Path, client: str, own: Any) -> list[Row]:
    lists = own if isinstance(own, Mapping) else {None: own}
    if not all(isinstance(samples, list) for samples in lists.values()):
        raise DataError(
            f"{file}: client {client!r} has no list of samples; expected numbers or files, or train and test"
        )
    return [(sample, client, _split(file, split)) for split, samples in lists.items() for sample in samples]


def _split(file: Path, name: Any) -> str | None:
    if name is None or name == "":
        return None
    split = SPLIT_NAMES.get(str(name).lower())
    if split is None:
        raise DataError(
            f"{file}: no split {name!r}; expected train, test or validation{did_you_mean(str(name), SPLITS)}"
        )
    return split


def _sample_numbers(file: Path, samples: list[Any], dataset: Dataset) -> list[int]:
    """Returns the numbers of samples that are named by number or by file."""
    of_file = {name: number for number, name in enumerate(dataset.files)}
    numbers: list[int] = []
    for sample in samples:
        text = str(sample).strip()
        number = of_file.get(text.removeprefix("./"), int(text) if text.isdecimal() else -1)
        if not 0 <= number < len(dataset):
            hint = did_you_mean(text, dataset.files[:10_000])
            known = "files below its folder, or " if dataset.files else ""
            raise DataError(
                f"{file}: {dataset.name} has no sample {text!r}; expected {known}numbers from 0 to {len(dataset) - 1}"
                f"{hint}"
            )
        numbers.append(number)
    return numbers
