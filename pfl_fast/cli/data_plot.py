"""``pfl-fast data partition`` and ``plot``: who has what, as a folder and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pfl_fast.cli.data_options import data_options, described, open_dataset, partition_of, partition_options
from pfl_fast.errors import ConfigError, DataError


@click.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to save it in.")
@data_options
@partition_options
def partition(name: str, out: Path, data_dir: Path | None, size: int | None, kind: str | None, **options: Any) -> None:
    """Share the data set NAME out over clients and save who has which samples.

    \b
    Examples:
      pfl-fast data partition mnist --clients 20 --beta 0.1 --seed 1 --legacy --out mnist-20
      pfl-fast data plot mnist-20 --out mnist-20.png
    """
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise DataError(f"{out} is there already; remove it or choose another folder")
    made = partition_of(open_dataset(name, data_dir, size), kind, options)
    made.save(out)
    click.echo(f"{described(made)}, in {out}")


@click.command()
@click.argument("what", metavar="NAME|FOLDER")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The picture, a PNG.")
@data_options
@partition_options
def plot(what: str, out: Path, data_dir: Path | None, size: int | None, kind: str | None, **options: Any) -> None:
    """Draw how many samples of which class each client has.

    NAME is a data set, shared out as the options say; FOLDER is a saved partition.

    \b
    Examples:
      pfl-fast data plot cifar10 --partition dirichlet --clients 20 --beta 0.1 --out cifar10.png
      pfl-fast data plot mnist-20 --out mnist-20.png
    """
    from pfl_fast.data.partition import Partition
    from pfl_fast.data.pictures import partition_plot

    if (Path(what) / "partition.json").is_file():
        made = Partition.load(what)
        if kind or any(value is not None for value in options.values()):
            raise ConfigError(f"{what} is a saved partition; leave out the options that would make another")
        dataset = open_dataset(str(made.settings.get("dataset")), data_dir, size)
        made.check_fits(dataset)
    else:
        dataset = open_dataset(what, data_dir, size)
        made = partition_of(dataset, kind, options)
    partition_plot(made, dataset.y, out, dataset.classes)
    click.echo(f"{described(made)}, in {out}")
