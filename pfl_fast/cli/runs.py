"""``pfl-fast runs``: lists run folders, and removes them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.command_group import CommandGroup
from pfl_fast.errors import ConfigError, PflFastError

if TYPE_CHECKING:
    from pfl_fast.report.stored_run import StoredRun

DEPTH = 4  # folders between the given one and a run


class RunsGroup(CommandGroup):
    """Takes ``pfl-fast runs FOLDER`` as ``pfl-fast runs list FOLDER``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that is meant."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["list", *args])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Lets ``list`` take all arguments without a command."""
        named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


@click.group(cls=RunsGroup)
def runs() -> None:
    """List run folders with their results and sizes, or remove them.

    \b
    Examples:
      pfl-fast runs                                  all runs below the folder runs
      pfl-fast runs digits --json                    runs of a comparison, as JSON
      pfl-fast runs rm runs/fedcp-digits-1           remove a run, after a question
    """


@runs.command("list")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"), required=False)
@click.option("--json", "as_json", is_flag=True, help="print a JSON array instead of a table")
def list_runs(folder: Path, as_json: bool) -> None:
    """List the runs below FOLDER (default: runs).

    \b
    Examples:
      pfl-fast runs
      pfl-fast runs list digits
      pfl-fast runs list --json
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; pfl-fast train writes runs to the folder runs")
    rows = [described(path) for path in find_runs(folder)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        click.echo(f"no runs in {folder}; pfl-fast train fedcp --dataset digits trains one", err=True)
    else:
        click.echo(as_table(rows))


@runs.command()
@click.argument("folders", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="remove without a question")
def rm(folders: tuple[Path, ...], yes: bool) -> None:
    """Remove the runs in the folders RUN with all their results.

    Nothing is removed if one of the folders is not a run, or is being trained.

    \b
    Examples:
      pfl-fast runs rm runs/fedcp-digits-1
      pfl-fast runs rm runs/fedcp-digits-1 runs/fedcp-digits-2 --yes
    """
    from pfl_fast.engine.results.run_folder import CONTENTS

    folders = tuple(dict.fromkeys(folders))
    rows = [removable(folder) for folder in folders]
    for folder, row in zip(folders, rows, strict=True):
        others = sorted(path.name for path in folder.iterdir() if path.name not in (*CONTENTS, "run.lock"))
        also = f"; with other files: {', '.join(others)}" if others else ""
        click.echo(
            f"{folder}: {row['method']} on {row['dataset']}, {row['rounds']} rounds, {row['state']}, "
            f"{size_text(row['bytes'])}{also}"
        )
    if not yes and not click.confirm(f"Remove {'this run' if len(rows) == 1 else f'these {len(rows)} runs'}?"):
        click.echo("Nothing was removed.", err=True)
        sys.exit(1)
    for folder in folders:
        remove(folder)
    click.echo(f"removed: {', '.join(map(str, folders))}")


def find_runs(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yields run folders in the order of their names; does not look inside runs, hidden folders and links."""
    from pfl_fast.report.stored_run import is_run

    if is_run(folder):
        yield folder
    elif depth:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from find_runs(path, depth - 1)


def described(folder: Path) -> dict[str, Any]:
    """Returns the facts about a run that are listed; a damaged run has the state ``damaged``."""
    from pfl_fast.report.stored_run import read

    facts: dict[str, Any] = {"folder": str(folder)}
    try:
        return facts | _facts(read(folder))
    except ConfigError:
        unknown = dict.fromkeys(("method", "dataset", "data", "rounds", "planned", "best"))
        return {**facts, **unknown, "bytes": size_of(folder), "state": "damaged"}


def _facts(run: StoredRun) -> dict[str, Any]:
    return {
        "method": run.method,
        "dataset": run.settings["dataset"],
        "data": run.source,
        "rounds": run.rounds_done,
        "planned": run.settings["rounds"],
        "best": run.best,
        "bytes": size_of(run.folder),
        "state": run.state,
    }


def size_of(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink())


def size_text(size: int) -> str:
    """Returns a size in units of 1000 bytes.

    >>> size_text(812), size_text(3_240_000)
    ('812 B', '3.2 MB')
    """
    if size < 1000:
        return f"{size} B"
    power = min(4, (len(str(size)) - 1) // 3)
    return f"{size / 1000**power:.1f} {('', 'kB', 'MB', 'GB', 'TB')[power]}"


def as_table(rows: list[dict[str, Any]]) -> str:
    """Returns the list of runs as text."""
    header = ("run", "method", "data set", "rounds", "best", "size", "state")
    cells = [
        (
            row["folder"],
            row["method"] or "",
            f"{row['dataset']} (stand-in)" if row["data"] == "synthetic stand-in" else row["dataset"] or "",
            "" if row["rounds"] is None else f"{row['rounds']}/{row['planned']}",
            "" if row["best"] is None else f"{row['best']:.4f}",
            size_text(row["bytes"]),
            row["state"],
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(w) if n in (3, 4, 5) else cell.ljust(w)
            for n, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in (header, *cells)
    ]
    total = f"{len(rows)} run{'s' if len(rows) > 1 else ''}, {size_text(sum(row['bytes'] for row in rows))}"
    best = "best: test accuracy by samples after aggregation, or after local training if only that is measured"
    return "\n".join([*(line.rstrip() for line in lines), f"{total}; {best}"])


def removable(folder: Path) -> dict[str, Any]:
    """Returns the facts about a run; raises if the folder is not a run, or is being trained."""
    from pfl_fast.engine.results.run_lock import RunLock
    from pfl_fast.report.stored_run import is_run

    if folder.is_symlink() or not folder.is_dir() or not is_run(folder):
        what = "is a link" if folder.is_symlink() else "holds no run (config.toml and partition/ are missing)"
        raise ConfigError(f"{folder}: {what}; nothing is removed")
    if holder := RunLock(folder).holder():
        raise RunInUseError(f"{folder}: {holder} trains this run; nothing is removed. Stop it first")
    return described(folder)


def remove(folder: Path) -> None:
    """Removes a run while holding its lock, so that no process trains it meanwhile."""
    from pfl_fast.engine.results.run_lock import RunLock

    lock = RunLock(folder)
    lock.acquire(lambda _: None)
    try:
        # The lock goes last; without its settings, an interrupted removal leaves no folder that looks like a run.
        (folder / "config.toml").unlink()
        shutil.rmtree(folder)
    except OSError as error:
        raise PflFastError(f"{error.filename}: cannot be removed ({error.strerror})") from None
    finally:
        lock.release()


class RunInUseError(PflFastError):
    """A run is being trained."""
