"""``pfl-fast compare``: methods, seeds and grids in one table."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast import config
from pfl_fast.cli.pfllib_flags import METHOD_NAMES, canonical_name
from pfl_fast.cli.ranks import refuse_ranks
from pfl_fast.cli.setting_options import SETTINGS, given, setting_options
from pfl_fast.cli.train import DASHES, TrainCommand
from pfl_fast.cli.train_request import options_in, read_assignments
from pfl_fast.errors import ConfigError, raise_config_errors
from pfl_fast.trust import check

if TYPE_CHECKING:
    from pfl_fast.comparison.plan import ComparisonPlan, Request
    from pfl_fast.comparison.results import Comparison

EXAMPLES = """\b
Examples:
  pfl-fast compare --methods fedavg,fedper,fedcp --seeds 0,1,2 --dataset digits --rounds 10 --out digits
  pfl-fast compare --methods fedper,fedcp --grid lam=1,5,10 --dataset digits --rounds 10 --out lambda
  pfl-fast compare --methods ditto,fedcp --set ditto.lam=0.5 --set fedcp.lam=5 --dataset digits --out two
  pfl-fast compare --runs runs/fedavg-digits-1 runs/fedcp-digits-1 --protocol fedcp --out table

\b
An interrupted comparison continues when the command is repeated; finished runs are kept. All methods train on one
partition with the same settings and initial weights; --set METHOD.NAME=VALUE changes a value for one method.
"""


@click.command(cls=TrainCommand, epilog=EXAMPLES, context_settings=DASHES)
@click.argument("folders", nargs=-1, metavar="[RUN...]", type=click.Path(path_type=Path))
@click.option("--methods", metavar="NAME,...", help="methods to compare; pfl-fast methods lists them")
@click.option("--seeds", metavar="N,...", default="0", help="seeds; each trains every method once  [0]")
@click.option("--grid", "grids", multiple=True, metavar="KEY=A,B,...", help="values to compare; repeatable")
@click.option("--runs", is_flag=True, help="compare the finished runs RUN..., or the runs of finished comparisons")
@click.option("--partition-per-seed", is_flag=True, help="draw a partition for each seed; otherwise all runs share one")
@setting_options([name for name in SETTINGS if name != "seed"])
@click.option("--preset", metavar="NAME", help="named set of values, for the methods that have it")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="value of a setting, or of an option for the methods that have it; METHOD.KEY=VALUE: for one; repeatable",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="file with settings, and options of its method",
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="folder for runs, tables and curves"
)
@click.option("--trust", is_flag=True, help="load models and metrics that FILE.toml names as module:attribute")
@click.option("--quiet", is_flag=True, help="print the table and nothing else")
def compare(
    folders: tuple[Path, ...],
    methods: str | None,
    seeds: str,
    grids: tuple[str, ...],
    runs: bool,
    partition_per_seed: bool,
    preset: str | None,
    assignments: tuple[str, ...],
    config_file: Path | None,
    out: Path,
    trust: bool,
    quiet: bool,
    **values: Any,
) -> None:
    """Train several methods on the same data, over seeds and grids, or compare finished runs.

    The folder gets the runs, the table as text, CSV, Markdown and LaTeX, and learning curves as PNG, PDF and SVG.
    """
    if bool(folders) != runs or runs == bool(methods):
        raise ConfigError("give either --methods NAME,... or --runs RUN...")
    if runs:
        if [*grids, *assignments, *(name for name in given(values) if name != "protocol")] or config_file or preset:
            raise ConfigError("--runs: the runs have their settings already; only --protocol and --out can be given")
        return compare_finished(folders, out, values.get("protocol"))

    from pfl_fast.assembly import find_method
    from pfl_fast.comparison.plan import Request, seeds_of
    from pfl_fast.methods import METHODS
    from pfl_fast.models import absolute_code

    named = [canonical_name(name.strip(), METHODS, METHOD_NAMES) for name in str(methods).split(",")]
    names = [absolute_code(name) for name in named]
    for name in names:
        find_method(name)
    if len(set(names)) < len(names):
        raise ConfigError(f"methods: each method once, got {methods}")
    errors: list[str] = []
    assigned, points = read_assignments(assignments, errors), read_assignments(grids, errors)
    raise_config_errors(errors)
    if len(points) < len(grids):
        raise ConfigError("grid: a name is given twice; write all its values as KEY=A,B")
    grid = {name: [value.strip() for value in text.split(",")] for name, text in points.items()}
    from_file = file_values(config_file, names)
    overridden = {name for name in from_file if name.rpartition(".")[2] in {*assigned, *grid}}
    from_file = {name: value for name, value in from_file.items() if name not in overridden}
    if config_file:
        check(config_file, {n: value for n, value in from_file.items() if n not in given(values)}, trust)
    merged = {**from_file, **given(values), **assigned}
    run_comparison(Request(tuple(names), seeds_of(seeds), merged, grid, preset, partition_per_seed), out, quiet)


def file_values(file: Path | None, methods: Iterable[str]) -> dict[str, Any]:
    """Returns the settings of a file and, for its own method only, the options."""
    values = config.read(file) if file else {}
    method = values.pop("method", None)
    values.pop("seed", None)
    options = options_in(values, method)
    if options and method not in methods:
        click.echo(f"note: {file}: options of {method} left out: {', '.join(options)}", err=True)
    own = {f"{method}.{name}": values[name] for name in options} if method in methods else {}
    return {**{name: value for name, value in values.items() if name not in options}, **own}


def run_comparison(request: Request, out: Path, quiet: bool) -> None:
    """Trains all runs of a request, prints and writes the table; exits with 1 if a run failed."""
    refuse_ranks("compare")

    from pfl_fast.comparison.plan import make_plan
    from pfl_fast.comparison.results import finished_runs
    from pfl_fast.comparison.train import locked

    log: Callable[[str], None] = (lambda _: None) if quiet else click.echo
    with continued_by_repeating(out), locked(out, log):
        plan = make_plan(request, out, log)
        failures = train_plan(plan, quiet)
        comparison = finished_runs(plan, failures)
        if comparison:
            write_results(comparison, out)
    exit_if_failed(len(failures), len(plan.runs))


def train_plan(plan: ComparisonPlan, quiet: bool) -> dict[tuple[str, int], str]:
    """Trains the runs that are not finished, with a live table; returns the error messages of failed runs."""
    from pfl_fast.cli.compare_progress import RunTable
    from pfl_fast.comparison.train import train_all

    with RunTable(plan, quiet) as table:
        return train_all(plan, table.started, table.ended)


@contextmanager
def continued_by_repeating(out: Path) -> Iterator[None]:
    """After a signal, prints the command that continues and exits with 128 + signal number."""
    from pfl_fast.engine.stopping import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as interruption:
        received = signal.Signals(getattr(interruption, "signal", None) or signal.SIGINT)
        click.echo(f"Interrupted ({received.name}). Continue with: {continuing_command(out)}", err=True)
        sys.exit(128 + received)


def exit_if_failed(failed: int, runs: int) -> None:
    """Exits with 1 if a run failed."""
    if failed:
        click.echo(f"Error: {failed} of {runs} runs failed; RUN/error.txt has the traceback", err=True)
        sys.exit(1)


def compare_finished(folders: Iterable[Path], out: Path, protocol: str | None) -> None:
    """Prints and writes the table of finished runs."""
    from pfl_fast.comparison.results import compare as compare_runs
    from pfl_fast.comparison.results import read_runs
    from pfl_fast.comparison.train import locked

    runs, chosen = read_runs(list(folders), protocol)
    comparison = compare_runs(runs, chosen, {})
    with locked(out, click.echo):
        write_results(comparison, out)


def write_results(comparison: Comparison, out: Path) -> None:
    """Prints the table; writes it in all formats, and the learning curves."""
    from pfl_fast.comparison.curves import draw_curves
    from pfl_fast.comparison.formats import comma_separated, table_of, text, write_tables

    table = table_of(comparison)
    files = [*write_tables(table, out, csv=comma_separated(comparison)), *draw_curves(comparison, out)]
    click.echo(text(table))
    click.echo(f"in {out}: {', '.join(files)}")


def continuing_command(out: Path) -> str:
    """Returns the command that was given, with ``--out``."""
    context = click.get_current_context()
    arguments = list(context.meta["arguments"])
    if not any(argument == "--out" or argument.startswith("--out=") for argument in arguments):
        arguments += ["--out", str(out)]
    return shlex.join(["pfl-fast", str(context.info_name), *arguments])
