"""``pfl-fast data``: commands about one data set."""

from __future__ import annotations

from typing import Any

import click

from pfl_fast.cli.command_group import CommandGroup
from pfl_fast.cli.data_exchange import export, import_
from pfl_fast.cli.data_options import open_dataset, read_settings
from pfl_fast.cli.data_plot import partition, plot
from pfl_fast.cli.data_show import show
from pfl_fast.cli.setting_options import setting_options


@click.group(cls=CommandGroup)
def data() -> None:
    """Download, show, partition, import and export data sets.

    \b
    Examples:
      pfl-fast data get mnist
      pfl-fast data show mnist --out mnist.png
      pfl-fast data plot mnist --partition dirichlet --beta 0.1 --out clients.png
      pfl-fast data import PFLlib/dataset/MNIST --name mnist-pfllib
      pfl-fast data import FL-bench/data/cifar10 --format fl-bench --out cifar10-fl-bench
    """


@click.command()
@click.argument("name")
@setting_options(["data_dir", "image_size"])
def get(name: str, **values: Any) -> None:
    """Download the data set NAME and decode it, each only once.

    An interrupted download is continued. Files already in the data folder are used.

    \b
    Examples:
      pfl-fast data get cifar10
      pfl-fast data get digits5 --image-size 28
      pfl-fast data get tiny --data-dir /mnt/data
    """
    dataset = open_dataset(read_settings(name, values, real_data_only=True))
    shape = " x ".join(map(str, dataset.input_shape))
    domains = f", {len(dataset.domains)} domains" if dataset.domains else ""
    click.echo(
        f"{name}: {len(dataset)} samples of {shape}, {dataset.test.sum()} of them test samples, "
        f"{len(dataset.classes)} classes{domains} ({dataset.source})"
    )


for command in (get, show, partition, plot, import_, export):
    data.add_command(command)
