"""``pfl-fast analyse``: tables and figures of a finished run."""

from __future__ import annotations

from pathlib import Path

import click

from pfl_fast.analysis.catalogue import ANALYSES


class AnalyseCommand(click.Command):
    """Lists all analyses in ``--help``."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the names of the analyses, by method."""
        owners = {entry.methods for entry in ANALYSES.values()}
        for methods in sorted(owners):
            title = f"Analyses of {', '.join(methods)}" if methods else "Analyses of every method"
            with formatter.section(title):
                formatter.write_dl([
                    (name, entry.summary + (f"; needs {entry.needs}" if entry.needs else "")
                     + ("; takes minutes, not in all" if entry.slow else ""))
                    for name, entry in ANALYSES.items() if entry.methods == methods
                ])  # fmt: skip


@click.command(cls=AnalyseCommand)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--what", metavar="NAME,...", default="all", show_default=True,
    help="analyses; all: those that suit the method of the run and take seconds",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="folder of the files  [RUN/analysis]")
@click.option("--format", "formats", metavar="svg,png,pdf", default="svg", show_default=True, help="formats of figures")
@click.option(
    "--split", type=click.Choice(["test", "train"]),
    help="samples to use, where papers do not say  [those of the paper, else test]",
)  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(min=1), default=500, show_default=True, help="maximum samples of a client"
)
@click.option(
    "--client", type=click.IntRange(min=0), default=0, show_default=True,
    help="client of analyses that show single samples",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="seed of random draws")
@click.option("--data-dir", metavar="DIR", help="folder of data sets  [that of the run]")
@click.option("--trust", is_flag=True, help="load models that somebody else's run names as module:attribute")
def analyse(
    run: Path,
    what: str,
    out: Path | None,
    formats: str,
    split: str | None,
    samples: int,
    client: int,
    seed: int,
    data_dir: str | None,
    trust: bool,
) -> None:
    """Write the papers' tables and figures of the finished run in folder RUN.

    Each analysis writes NAME.json (title, caption, columns, rows), NAME.csv and a figure. Nothing is trained again:
    models come from the checkpoint of the run and its snapshots, samples from its data set and partition.

    \b
    Examples:
      pfl-fast train fedcp --dataset digits --rounds 20 --snapshots 5 --out runs/a
      pfl-fast analyse runs/a
      pfl-fast analyse runs/a --what fairness,cka --format svg,png --out figures

    \b
    A folder that holds runs which differ in one option is analysed as a sweep:
      pfl-fast compare fedcp --dataset digits --rounds 5 --grid lam=0,1,5 --out runs/lam
      pfl-fast analyse runs/lam --what sweep
    """
    names = [name.strip() for name in what.split(",") if name.strip()]
    suffixes = tuple(suffix.strip() for suffix in formats.split(",") if suffix.strip())
    wrong = [suffix for suffix in suffixes if suffix not in ("svg", "png", "pdf")]
    if wrong or not suffixes:
        raise click.BadParameter(f"choose from svg, png, pdf; got {formats!r}", param_hint="--format")

    from pfl_fast import analysis

    def done(name: str, files: list[Path] | None, reason: str) -> None:
        if files is None:
            click.echo(f"{name:<24} left out: {reason}")
        else:
            click.echo(f"{name:<24} {', '.join(file.name for file in files)}")

    written = analysis.analyse(
        run, names, out, suffixes, click.echo, done, trust, {"data_dir": data_dir} if data_dir else None,
        split=split, samples=samples, client=client, seed=seed,
    )  # fmt: skip
    click.echo(f"{len(written)} {'analysis' if len(written) == 1 else 'analyses'} in {out or run / 'analysis'}")
