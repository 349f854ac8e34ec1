"""Progress of a comparison: a live table on a terminal, a line per finished run in pipes and files."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.cli.messages import stand_in_warning
from pfl_fast.comparison.formats import percent
from pfl_fast.comparison.results import Row, read_run
from pfl_fast.engine.client_results import LocalReport
from pfl_fast.engine.results.listeners import Listener, RunView
from pfl_fast.progress import duration

if TYPE_CHECKING:
    from rich.table import Table

    from pfl_fast.comparison.plan import ComparisonPlan, PlannedRun


class RunTable:
    """Shows the state of every run: rows are methods, columns are seeds.

    Args:
        plan: runs of the comparison.
        quiet: show nothing.
        console: console of the live table; None: standard output, if it is a terminal.
    """

    def __init__(self, plan: ComparisonPlan, quiet: bool, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.plan, self.quiet = plan, quiet
        self.cells = {(run.label, run.seed): "" for run in plan.runs}
        self.rows = {run.label: Row(run.label) for run in plan.runs}
        self.done, self.trained, self.seconds, self.begin = 0, 0, 0.0, 0.0
        live = not quiet and (console is not None or sys.stdout.isatty())
        self.live = Live(console=console or Console(), transient=True, auto_refresh=False) if live else None

    def __enter__(self) -> RunTable:
        """Prints what the runs share, and starts the live table."""
        plan = self.plan
        if not self.quiet:
            click.echo(f"data       {plan.dataset.name} ({plan.dataset.source})")
            click.echo(f"partition  {plan.partition}")
            click.echo(f"accuracy   {plan.protocol}; protocol {plan.protocol.name}")
            for note in plan.notes:
                click.echo(f"note       {note}: default of a method, taken by all")
            click.echo("\n".join([*stand_in_warning(plan.dataset), ""]))
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Removes the live table."""
        if self.live:
            self.live.stop()

    def started(self, run: PlannedRun) -> Listener:
        """Returns the listener of a run."""
        self.trained, self.begin = self.trained + 1, monotonic()
        return RunProgress(self, run)

    def show(self, run: PlannedRun, cell: str) -> None:
        """Sets the cell of a run and redraws the table if the cell has changed."""
        changed = self.cells[run.label, run.seed] != cell
        self.cells[run.label, run.seed] = cell
        if self.live and changed:
            self.live.update(self.table(), refresh=True)

    def ended(self, run: PlannedRun, message: str | None) -> None:
        """Shows the accuracy of a finished run, or the message of a failed one."""
        self.done += 1
        self.seconds += monotonic() - self.begin if self.begin else 0.0
        self.begin = 0.0
        if message is None:
            found = read_run(run.folder, run.protocol, run.label)
            self.rows[run.label].runs[run.seed] = found
            text = percent((found.measured.accuracy, None))
        else:
            text = "failed"
        self.show(run, text)
        if not self.live and not self.quiet:
            left = f"  {self.time_left()}" if self.done < len(self.plan.runs) else ""
            click.echo(f"{self.done}/{len(self.plan.runs)}  {run.label} seed {run.seed}: {message or text}{left}")

    def time_left(self) -> str:
        """Returns the remaining time, from the mean of the runs trained by this command."""
        waiting = len(self.plan.runs) - self.done
        return f"{duration(self.seconds / self.trained * waiting)} left" if self.seconds else ""

    def table(self) -> Table:
        """Returns the table as it is shown now."""
        from rich.table import Table

        seeds = list(dict.fromkeys(run.seed for run in self.plan.runs))
        left = f", {self.time_left()}" if self.seconds else ""
        table = Table(
            title=f"accuracy in %, run {min(self.done + 1, len(self.plan.runs))} of {len(self.plan.runs)}{left}"
        )
        table.add_column("method")
        for title in (*(f"seed {seed}" for seed in seeds), "mean"):
            table.add_column(title, justify="right")
        for label, row in self.rows.items():
            table.add_row(label, *(self.cells[label, seed] for seed in seeds), percent(row.statistics()))
        return table


class RunProgress(Listener):
    """Shows the rounds of one run in the live table.

    Args:
        table: the table.
        run: the run.
    """

    def __init__(self, table: RunTable, run: PlannedRun) -> None:
        self.table, self.run, self.rounds = table, run, 0

    def started(self, run: RunView) -> None:
        """Reads the number of rounds."""
        self.rounds = run.last_round

    def client_done(self, round: int, done: int, total: int, report: LocalReport) -> None:  # noqa: ARG002
        """Shows the current round."""
        self.table.show(self.run, f"round {round}/{self.rounds}")
