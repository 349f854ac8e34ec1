"""``pfl-fast data import`` and ``export``: other programs' clients in, and ours out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pfl_fast.cli.data_options import described, open_partition, partition_options, read_settings
from pfl_fast.errors import ConfigError, DataError, did_you_mean

FORMATS = ("pfllib",)


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--format", "layout", default="pfllib", show_default=True, help="Whose layout: pfllib (also FedCP's).")
@click.option("--name", help="What to call it here. Default: the folder's name.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Keep it here. Default: $PFL_FAST_DATA.")
def import_(path: Path, layout: str, name: str | None, data_dir: Path | None) -> None:
    """Copy the clients of another program from the folder PATH into a data set of that name.

    Their files are pickles; only plain arrays are read from them, and nothing in them is executed.

    \b
    Examples:
      pfl-fast data import PFLlib/dataset/MNIST --name mnist-pfllib
      pfl-fast data plot mnist-pfllib --out clients.png
    """
    from pfl_fast.data.catalogue import DATASETS
    from pfl_fast.data.pfllib import import_pfllib
    from pfl_fast.data.store import imported_folder, save_dataset

    _check_format(layout)
    name = name or path.resolve().name
    if name in DATASETS:
        raise DataError(f"{name} is a data set of the catalogue; choose another --name, for example {name}-imported")
    folder = imported_folder(name, data_dir)
    dataset = import_pfllib(path, name)
    save_dataset(dataset, folder)
    click.echo(
        f"{name}: {len(dataset)} samples ({dataset.kind}), {len(dataset.classes)} classes, "
        f"{len(dataset.natural or ())} clients, in {folder}"
    )


@click.command()
@click.argument("name")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--format", "layout", default="pfllib", show_default=True, help="file format: pfllib")
@partition_options
def export(name: str, out: Path, layout: str, **values: Any) -> None:
    """Distribute the data set NAME over clients and write PFLlib's files to the new folder OUT.

    \b
    Examples:
      pfl-fast data export mnist PFLlib/dataset/MNIST --clients 20 --beta 0.1 --legacy-partition
      pfl-fast data export cifar10 cifar10-pat --partition pathological
    """
    from pfl_fast.data.pfllib import export_pfllib

    _check_format(layout)
    dataset, partition = open_partition(read_settings(name, values, real_data_only=True))
    export_pfllib(dataset, partition, out)
    click.echo(f"{described(partition)}, exported to {out}")


def _check_format(layout: str) -> None:
    if layout not in FORMATS:
        raise ConfigError(f"no format {layout!r} (there is {', '.join(FORMATS)}){did_you_mean(layout, FORMATS)}")
