"""``pfl-fast reproduce``: runs a table of a paper and prints its numbers beside ours."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.compare import continued_by_repeating, exit_if_failed, train_plan
from pfl_fast.cli.ranks import refuse_ranks
from pfl_fast.cli.setting_options import SETTINGS, GroupedCommand, given, setting_options
from pfl_fast.cli.train import DASHES
from pfl_fast.cli.train_request import read_assignments
from pfl_fast.config import NOT_IN_RESULTS
from pfl_fast.errors import ConfigError, raise_config_errors
from pfl_fast.scratch import scratch_folder
from pfl_fast.trust import check

if TYPE_CHECKING:
    from pfl_fast.comparison.plan import ComparisonPlan
    from pfl_fast.comparison.recipes import Column, Recipe

EXECUTION = [name for name in SETTINGS if name in NOT_IN_RESULTS - {"protocol", "rounds"}]
EXAMPLES = """\b
Examples:
  pfl-fast reproduce fedcp/table2 --columns mnist --dry-run      estimate the time
  pfl-fast reproduce fedcp/table2 --columns mnist --rows fedavg,fedper,fedcp --scale 0.03 --seeds 0,1
  pfl-fast reproduce fedpick/table4 --set rounds=60 --set model_options=cut=conv,head=linear

\b
An interrupted reproduction continues when the command is repeated. --scale S trains S x the rounds (at least 10), on at
most sqrt(S) x the paper's mean number of training samples per client (at least two batches); tests keep all samples.
The results name every changed setting. Numbers on generated data (a stand-in) are not compared with the paper's.
"""


@click.command(cls=GroupedCommand, epilog=EXAMPLES, context_settings=DASHES)
@click.argument("name")
@click.option("--rows", metavar="NAME,...", help="rows to run; default: all")
@click.option("--columns", metavar="NAME,...", help="columns to run; default: all")
@click.option("--seeds", metavar="N,...", help="seeds; default: those of the recipe")
@click.option("--scale", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="size of the runs, up to 1  [1]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="changed setting or option; repeatable")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="folder for runs and tables  [runs/<paper>-<table>, with the scale]",
)
@click.option("--dry-run", is_flag=True, help="estimate the time and stop")
@click.option("--trust", is_flag=True, help="load models and metrics that NAME.toml names as module:attribute")
@click.option("--quiet", is_flag=True, help="print the table and nothing else")
@setting_options(EXECUTION)
def reproduce(
    name: str,
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    scale: float,
    assignments: tuple[str, ...],
    out: Path | None,
    dry_run: bool,
    trust: bool,
    quiet: bool,
    **values: Any,
) -> None:
    """Run a table of a paper and print the paper's numbers beside ours.

    NAME is a recipe that pfl-fast recipes lists, or a TOML file of your own. The time is estimated first.
    """
    refuse_ranks("reproduce")

    from pfl_fast.comparison.plan import seeds_of
    from pfl_fast.comparison.recipes import load_recipe

    recipe = load_recipe(name).select(rows, columns)
    for column, row in itertools.product(recipe.columns, recipe.rows):
        check(Path(name), {**recipe.settings(column), **recipe.row_values(row, column)}, trust)
    chosen = seeds_of(seeds) if seeds else recipe.seeds
    errors: list[str] = []
    changes = read_assignments(assignments, errors)
    raise_config_errors(errors)
    folder = out or Path("runs") / (recipe.name.replace("/", "-") + (f"-scale{scale:g}" if scale < 1 else ""))
    words = ["pfl-fast", "reproduce", name]
    for option, value in (("--rows", rows), ("--columns", columns), ("--seeds", seeds)):
        words += [option, value] if value else []
    words += ["--scale", f"{scale:g}"] if scale < 1 else []
    words += [word for assignment in assignments for word in ("--set", assignment)]
    table = ReproducedTable(recipe, chosen, scale, changes, given(values), quiet, shlex.join(words))
    if dry_run:
        with scratch_folder() as temporary:
            table.plan(temporary / "plan")
            table.estimate()
        return
    from pfl_fast.comparison.train import locked

    with continued_by_repeating(folder), locked(folder, click.echo):
        table.plan(folder)
        table.estimate()
        table.run(folder)


class ReproducedTable:
    """The columns of a recipe, each a comparison.

    Args:
        recipe: rows and columns to run.
        seeds: seeds of the runs.
        scale: scale of rounds and samples.
        changes: settings and options that the user changes, as text.
        execution: settings that do not change results.
        quiet: print the table and nothing else.
        command: command that reproduces the table.
    """

    def __init__(
        self,
        recipe: Recipe,
        seeds: tuple[int, ...],
        scale: float,
        changes: dict[str, str],
        execution: dict[str, Any],
        quiet: bool,
        command: str,
    ) -> None:
        self.recipe, self.seeds, self.scale, self.quiet = recipe, seeds, scale, quiet
        self.execution, self.command = execution, command
        self.changes = {column.name: {**recipe.scaled(column, scale), **changes} for column in recipe.columns}
        self.plans: list[tuple[Column, ComparisonPlan]] = []

    def plan(self, folder: Path) -> None:
        """Loads the data of all columns and plans their runs."""
        from pfl_fast.comparison.plan import make_plan

        for column in self.recipe.columns:
            changes = {**self.changes[column.name], **self.execution}
            request = self.recipe.request(column, self.recipe.rows, self.seeds, changes)
            if not request.rows:
                raise ConfigError(f"column {column.name}: the paper has none of the rows {self.recipe.row_names}")
            log = (lambda _: None) if self.quiet else click.echo
            self.plans.append((column, make_plan(request, folder / column.name, log)))

    def estimate(self) -> None:
        """Prints the estimated time of each column."""
        from pfl_fast.comparison.estimate import estimate
        from pfl_fast.progress import duration

        if self.quiet:
            return
        total = 0.0
        columns = [column for column, _ in self.plans]
        found = estimate([plan for _, plan in self.plans])
        for column, (plan, seconds) in zip(columns, found, strict=True):
            total += seconds
            click.echo(f"estimate   {column.name}: {len(plan.runs)} runs, {duration(seconds)}")
        click.echo(f"estimate   {duration(total)} in all, from one short round of each method\n")

    def run(self, folder: Path) -> None:
        """Trains all columns; prints and writes the table."""
        from pfl_fast.comparison.formats import text, write_tables
        from pfl_fast.comparison.reproduction import Reproduction, cells_of, data_text, reproduced_table
        from pfl_fast.comparison.results import finished_runs

        cells, failures = [], []
        for column, plan in self.plans:
            failed = train_plan(plan, self.quiet)
            failures += [f"failed: {column.name} {row} seed {seed}: {m}" for (row, seed), m in failed.items()]
            comparison = finished_runs(plan, failed)
            cells += cells_of(self.recipe, column, comparison, plan) if comparison else []
        result = Reproduction(
            recipe=self.recipe,
            seeds=self.seeds,
            scale=self.scale,
            changes={column.name: self.differences(column) for column, _ in self.plans},
            data={
                column.name: data_text(plan.dataset, self.recipe.settings(column)["dataset"])
                for column, plan in self.plans
            },
            cells=cells,
            failures=failures,
            command=self.command,
        )
        document = result.document()
        table, as_json = reproduced_table(document), json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        files = write_tables(table, folder, csv=result.csv(), json=as_json)
        click.echo(text(table))
        click.echo(f"in {folder}: {', '.join(files)}")
        exit_if_failed(len(failures), sum(len(plan.runs) for _, plan in self.plans))

    def differences(self, column: Column) -> dict[str, tuple[Any, Any]]:
        """Returns the changed values of a column: before and now."""
        before = {**{name: info.default for name, info in SETTINGS.items()}, **self.recipe.settings(column)}
        return {name: (before.get(name, "the paper's"), now) for name, now in self.changes[column.name].items()}
