"""``pfl-fast data partition`` and ``plot``: save the partition of a data set over clients, and plot it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pfl_fast import config
from pfl_fast.cli.data_options import (
    PARTITION_SETTINGS,
    described,
    open_dataset,
    open_partition,
    partition_options,
    read_settings,
)
from pfl_fast.cli.setting_options import given
from pfl_fast.errors import ConfigError


@click.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder to save the partition in")
@partition_options
def partition(name: str, out: Path, **values: Any) -> None:
    """Distribute the data set NAME over clients and save the sample indices of each client.

    The same options give the same partition in pfl-fast train, unless the method has its own values of them.

    \b
    Examples:
      pfl-fast data partition mnist --clients 20 --beta 0.1 --legacy-partition --out mnist-20
      pfl-fast data plot mnist-20 --out mnist-20.png
      pfl-fast train fedcp --dataset mnist --partition mnist-20
      pfl-fast data partition path/to/photos --partition split.csv --out photos-split
    """
    from pfl_fast.data.cache import refuse_existing

    refuse_existing(out)
    _, made = open_partition(read_settings(name, values))
    made.save(out)
    click.echo(f"{described(made)}, saved in {out}")


@click.command()
@click.argument("source", metavar="NAME|FOLDER")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="PNG file to write")
@partition_options
def plot(source: str, out: Path, **values: Any) -> None:
    """Plot the number of training samples per client and class.

    NAME is a data set, partitioned by the options below; FOLDER is a saved partition, such as that of a run.

    \b
    Examples:
      pfl-fast data plot cifar10 --partition dirichlet --clients 20 --beta 0.1 --out cifar10.png
      pfl-fast data plot mnist-20 --out mnist-20.png
      pfl-fast data plot runs/fedcp-digits-1/partition --out fedcp.png
    """
    from pfl_fast.data.partition import Partition
    from pfl_fast.data.pictures import partition_plot

    if (Path(source) / "partition.json").is_file():
        if said := [f"--{name.replace('_', '-')}" for name in given(values) if name in PARTITION_SETTINGS]:
            raise ConfigError(f"{source} is a saved partition; leave out the partition options ({', '.join(said)})")
        made = Partition.load(source)
        run = Path(source).resolve().parent / "config.toml"
        name = config.read(run).get("dataset") if run.is_file() else made.settings.get("dataset")
        dataset = open_dataset(read_settings(str(name), values))
        made.check_fits(dataset)
    else:
        dataset, made = open_partition(read_settings(source, values))
    partition_plot(made, dataset.y, out, dataset.classes)
    click.echo(f"{described(made)}, plotted in {out}")
