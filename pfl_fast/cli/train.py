"""``pfl-fast train``: one method, one data set, all rounds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from pfl_fast import config
from pfl_fast.cli.pfllib_flags import PREFIX, pfllib_flags
from pfl_fast.cli.request import gather
from pfl_fast.cli.setting_options import SETTINGS, GroupedCommand, given, setting_options
from pfl_fast.errors import PflFastError

EXAMPLES = """\b
Examples:
  pfl-fast train fedcp --dataset digits --rounds 10         offline, under a minute
  pfl-fast train fedavg --dataset digits --rounds 10        the same split, one model for all
  pfl-fast train fedcp --dataset mnist --preset official    as the authors' code does it
  pfl-fast train fedcp --set lam=1 --set cpn_depth=2        options of the method: pfl-fast methods fedcp
  pfl-fast train --config runs/fedcp-digits-1/config.toml   a run again, with all its settings
  pfl-fast train fedper --clients 2000 --join-ratio 0.01 --state disk

\b
Order: defaults, then the values of the method's paper, the preset, the file, the command line.
PFLlib's flags (-data -m -nc -gr -lbs -lr -ls -jr -lam ...) are understood too.
"""


class TrainCommand(GroupedCommand):
    """Says how to reach an option of a method that was written as if it were one of the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            owners = methods_with(name)
            if owners:
                raise click.UsageError(
                    f"{error.option_name}: an option of {', '.join(owners)}: write --set {name}=VALUE", ctx
                ) from None
            raise


def methods_with(option: str) -> list[str]:
    """The methods that have an option of that name."""
    from pfl_fast.methods import METHODS

    return [name for name, kind in METHODS.items() if option in {f.name for f in fields(kind.Options)}]


def with_dashes(token: str) -> str:
    """Lets ``--local_epochs`` mean ``--local-epochs``."""
    return token.replace("_", "-")


@click.command(cls=TrainCommand, epilog=EXAMPLES, context_settings={"token_normalize_func": with_dashes})
@click.argument("method", required=False)
@setting_options(SETTINGS)
@click.option("--preset", metavar="NAME", help="a method's own set of values, such as official")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="any option of the method, or any setting; repeatable",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="settings and options from a file",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER", help="for results  [runs/<method>-<dataset>-<number>]"
)
@click.option("--quiet", is_flag=True, help="print nothing but the outcome, in one line")
@pfllib_flags
def train(
    method: str | None,
    preset: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    out: Path | None,
    quiet: bool,
    **values: Any,
) -> None:
    """Train METHOD on all clients and test every client's model; pfl-fast methods lists what there is.

    Results and checkpoints go into a folder; a run that ends early goes on with pfl-fast resume.
    """
    said = given(values)
    flags = {name.removeprefix(PREFIX): value for name, value in said.items() if name.startswith(PREFIX)}
    settings = {name: value for name, value in said.items() if not name.startswith(PREFIX)}
    request = gather(method, preset, settings, flags, assignments, config_file)

    from pfl_fast.cli import pages, running
    from pfl_fast.experiment import Experiment

    for note in () if quiet else request.notes:
        click.echo(f"note: {note}", err=True)
    folder = out or new_folder(request.method, str(request.values.get("dataset", config.Settings.dataset)))
    refuse_other_run(folder)
    report = unheard if quiet else click.echo
    try:
        running.run(
            lambda: Experiment(request.method, resolved=request.resolved, out=folder, report=report),
            folder,
            quiet,
            pages.as_words({name: value for name, value in request.again.items() if name in SETTINGS}),
        )
    finally:
        if out is None:
            with suppress(OSError):  # goes only while it is empty: nothing came of the run
                folder.rmdir()


def new_folder(method: str, dataset: str) -> Path:
    """Makes the first ``runs/<method>-<dataset>-<number>`` that is not there: runs that start together differ."""
    number = 0
    while True:
        number += 1
        folder = Path("runs") / f"{method}-{dataset}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise OutError(f"{folder}: cannot be made ({error.strerror}); say another folder with --out") from None
        return folder


def refuse_other_run(folder: Path) -> None:
    """Before any work is done: results are never overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        holds_run = (folder / "config.toml").exists()
        hint = f"; pfl-fast resume {folder} goes on with the run in it" if holds_run else ""
        raise OutError(f"--out {folder}: is there already and not empty{hint}; choose another folder")


class OutError(PflFastError):
    """The folder for results cannot be used."""

    exit_code = 2


def unheard(_line: str) -> None:
    """For ``--quiet``."""
