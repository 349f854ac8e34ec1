"""``pfl-fast report``: one HTML file about runs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    metavar="FILE.html",
    help="file to write; replaces an earlier report, no other file  [report.html]",
)
@click.option("--title", metavar="TEXT", help="heading of the page  [methods and data sets]")
@click.option("--quiet", is_flag=True, help="print nothing")
def report(runs: tuple[Path, ...], out: Path, title: str | None, quiet: bool) -> None:
    """Write an HTML page with curves, bars, partition, times, traffic and settings of runs.

    RUN is a run folder, finished or not, or the folder of a comparison for all its runs. The page is one file that
    needs no network; runs can be switched on and off in it.

    \b
    Examples:
      pfl-fast report runs/fedcp-digits-1
      pfl-fast report runs/fedcp-digits-1 runs/fedavg-digits-1 --out digits.html
      pfl-fast report digits --out digits.html --title "FedCP and FedAvg, three seeds"
    """
    from pfl_fast.report import write

    target = write(runs, out, title=title)
    if not quiet:
        click.echo(f"{target} ({target.stat().st_size / 1e6:.1f} MB): open it in a browser")
