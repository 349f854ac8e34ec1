"""``pfl-fast data``: everything about one data set."""

from __future__ import annotations

from pathlib import Path

import click

from pfl_fast.cli.command_group import CommandGroup
from pfl_fast.cli.data_exchange import export, import_
from pfl_fast.cli.data_plot import partition, plot
from pfl_fast.cli.data_show import show


@click.group(cls=CommandGroup)
def data() -> None:
    """Fetch, look at, share out and exchange data sets.

    \b
    Examples:
      pfl-fast data get mnist
      pfl-fast data show mnist --out mnist.png
      pfl-fast data plot mnist --partition dirichlet --beta 0.1 --out clients.png
      pfl-fast data import PFLlib/dataset/MNIST --format pfllib --name my-mnist
    """


@click.command()
@click.argument("name")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Keep it here. Default: $PFL_FAST_DATA, else the user's data folder.",
)
@click.option("--size", type=click.IntRange(min=1), help="Side of the images, or number of tokens.")
def get(name: str, data_dir: Path | None, size: int | None) -> None:
    """Download the data set NAME, unless it is there, and decode it once.

    A download that was interrupted is continued. A folder that already holds the files is used as it is.

    \b
    Examples:
      pfl-fast data get cifar10
      pfl-fast data get digits5 --size 28
      pfl-fast data get tiny --data-dir /mnt/data
    """
    from pfl_fast.data.prepare import load
    from pfl_fast.data.progress import shown

    def report(message: str) -> None:
        click.echo(message, err=True)

    dataset = load(name, folder=data_dir, size=size, real_only=True, report=report, progress=shown)
    shape = " x ".join(map(str, dataset.input_shape))
    domains = f", {len(dataset.domains)} domains" if dataset.domains else ""
    click.echo(
        f"{name}: {len(dataset)} samples of {shape}, {dataset.test.sum()} of them for test, "
        f"{len(dataset.classes)} classes{domains} ({dataset.source})"
    )


for command in (get, show, partition, plot, import_, export):
    data.add_command(command)
