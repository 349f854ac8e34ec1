"""Options and helpers shared by the ``pfl-fast data`` commands."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.setting_options import given, setting_options
from pfl_fast.config import Settings
from pfl_fast.data.partition_spec import PartitionSpec
from pfl_fast.errors import raise_config_errors
from pfl_fast.options import convert

if TYPE_CHECKING:
    from pfl_fast.data.dataset import Dataset
    from pfl_fast.data.partition import Partition

DATA_SETTINGS = ("data_dir", "image_size", "samples")
PARTITION_SETTINGS = tuple(f.name for f in fields(PartitionSpec))

data_options = setting_options(DATA_SETTINGS)
partition_options = setting_options((*PARTITION_SETTINGS, *DATA_SETTINGS))


def read_settings(dataset: str, values: dict[str, Any], *, real_data_only: bool = False) -> Settings:
    """Returns the settings of the command line, as ``pfl-fast train`` reads them."""
    from pfl_fast.methods.papers import FIRST

    errors: list[str] = []
    paper = FIRST[dataset].training.get(dataset, {}) if dataset in FIRST else {}
    settings = convert(Settings, {"dataset": dataset, **paper, **given(values)}, errors)
    raise_config_errors(errors)
    return Settings(**settings, real_data_only=real_data_only)


def open_dataset(settings: Settings) -> Dataset:
    """Loads the data set as ``pfl-fast train`` does; messages go to stderr."""
    from pfl_fast.assembly import load_named

    return load_named(settings, lambda message: click.echo(message, err=True))


def open_partition(settings: Settings) -> tuple[Dataset, Partition]:
    """Loads the data set and makes its partition as ``pfl-fast train`` does."""
    from pfl_fast.data.partition import make_partition

    dataset = open_dataset(settings)
    return dataset, make_partition(dataset, settings)


def described(partition: Partition) -> str:
    """Returns a one-line description of a partition."""
    sizes = [len(index) for index in partition.train]
    tests = sum(len(index) for index in partition.test)
    from pfl_fast.cli.messages import names_of

    return (
        f"{partition.rule}: {partition.clients} clients{names_of(partition)} with {min(sizes)} to {max(sizes)} "
        f"training samples ({sum(sizes)} training and {tests} test samples in total), hash {partition.hash}"
    )
