"""``pfl-fast data import`` and ``export``: exchange clients with PFLlib and FL-bench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pfl_fast.cli.data_options import described, open_dataset, open_partition, partition_options, read_settings
from pfl_fast.cli.pfllib_flags import DATASETS as RENAMED
from pfl_fast.cli.pfllib_flags import canonical_name
from pfl_fast.cli.setting_options import setting_options
from pfl_fast.errors import ConfigError, DataError


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["pfllib", "fl-bench"]),
    default="pfllib",
    show_default=True,
    help="file format: pfllib (also FedCP's code) imports a data set with its clients, fl-bench a partition",
)
@click.option("--name", help="pfllib: name of the imported data set  [name of the folder]")
@click.option("--dataset", help="fl-bench: data set of the partition  [name of the folder]")
@click.option("--out", type=click.Path(path_type=Path), help="fl-bench: folder to save the partition in")
@setting_options(["data_dir"])
def import_(
    path: Path, file_format: str, name: str | None, dataset: str | None, out: Path | None, **values: Any
) -> None:
    """Import clients of another program from the folder PATH.

    Pickled files are read as plain arrays; no code in them is executed.

    \b
    Examples:
      pfl-fast data import PFLlib/dataset/MNIST --name mnist-pfllib
      pfl-fast train fedcp --dataset mnist-pfllib
      pfl-fast data import FL-bench/data/cifar10 --format fl-bench --out cifar10-fl-bench
      pfl-fast train fedcp --dataset cifar10 --partition cifar10-fl-bench
    """
    if file_format == "fl-bench":
        if name or not out:
            raise ConfigError("--format fl-bench imports a partition: say --out FOLDER, and --dataset, not --name")
        click.echo(import_partition(path, dataset or path.resolve().name, out, values))
    elif dataset or out:
        raise ConfigError(f"--dataset and --out are options of --format fl-bench, not of {file_format}")
    else:
        click.echo(import_dataset(path, name or path.resolve().name, values))


def import_dataset(path: Path, name: str, values: dict[str, Any]) -> str:
    """Copies PFLlib's clients into a data set of the data folder; returns a description."""
    from pfl_fast.data.cache import imported_folder, save_dataset
    from pfl_fast.data.catalogue import DATASETS
    from pfl_fast.data.pfllib import import_pfllib

    if name in DATASETS:
        raise DataError(f"{name} is a data set of the catalogue; choose another --name, for example {name}-imported")
    data_dir = read_settings(name, values).data_dir
    folder = imported_folder(name, Path(data_dir).expanduser() if data_dir else None)
    dataset = import_pfllib(path, name)
    save_dataset(dataset, folder)
    return (
        f"{name}: {len(dataset)} samples ({dataset.modality}), {len(dataset.classes)} classes, "
        f"{len(dataset.natural or ())} clients, in {folder}"
    )


def import_partition(path: Path, dataset: str, out: Path, values: dict[str, Any]) -> str:
    """Saves FL-bench's partition in the new folder ``out``; returns a description."""
    from pfl_fast.data.cache import refuse_existing
    from pfl_fast.data.catalogue import DATASETS
    from pfl_fast.data.fl_bench import read_fl_bench

    refuse_existing(out)
    name = canonical_name(dataset, DATASETS, RENAMED)
    partition = read_fl_bench(path, open_dataset(read_settings(name, values, real_data_only=True)))
    partition.save(out)
    return f"{described(partition)}, saved in {out}"


@click.command()
@click.argument("name")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--format",
    type=click.Choice(["pfllib"]),
    default="pfllib",
    show_default=True,
    expose_value=False,
    help="file format",
)
@partition_options
def export(name: str, out: Path, **values: Any) -> None:
    """Distribute the data set NAME over clients and write PFLlib's files to the new folder OUT.

    \b
    Examples:
      pfl-fast data export mnist PFLlib/dataset/MNIST --clients 20 --beta 0.1 --legacy-partition
      pfl-fast data export cifar10 cifar10-pat --partition pathological
    """
    from pfl_fast.data.pfllib import export_pfllib

    dataset, partition = open_partition(read_settings(name, values, real_data_only=True))
    export_pfllib(dataset, partition, out)
    click.echo(f"{described(partition)}, exported to {out}")
