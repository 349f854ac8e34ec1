"""Progress of a run: a live bar on a terminal, lines in pipes and files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from pfl_fast.engine.results.listeners import Listener, RunView

if TYPE_CHECKING:  # they import torch
    from pfl_fast.engine.client_results import LocalReport
    from pfl_fast.engine.results.records import RoundRecord

MAX_LINES = 40  # runs with at most this many evaluations print a line for each
LINE_SECONDS = 5.0  # minimum time between two lines of longer runs
BAR_COLUMNS = 105  # narrower terminals show numbers without the bar
ACCURACIES = {"test_accuracy_after_agg": "after aggregation", "test_accuracy_after_local": "after local training"}


class Progress(Listener):
    """Tracks rounds, accuracy and remaining time; ``clock`` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.rounds = 0
        self.start_time = self.start_round = 0.0
        self.accuracy: float | None = None
        self.best: float | None = None

    def started(self, run: RunView) -> None:
        """Starts from the rounds and accuracies that a resumed run already has."""
        self.rounds = run.last_round
        self.start_time, self.start_round = self.clock(), run.state.rounds_done
        for values in run.records:
            self.update_accuracy(values)

    def update_accuracy(self, values: dict[str, Any]) -> None:
        """Tracks the accuracy after aggregation, or after local training if only that one is measured."""
        found = next((values[name] for name in ACCURACIES if values.get(name) is not None), None)
        if found is not None:
            self.accuracy = found
            self.best = found if self.best is None else max(self.best, found)

    def seconds_left(self, rounds_done: float) -> float | None:
        """Returns the remaining time, extrapolated from the rounds done since the start."""
        done = rounds_done - self.start_round
        return (self.clock() - self.start_time) / done * (self.rounds - rounds_done) if done > 0 else None

    def close(self) -> None:
        """Called at the end of the run, also after an error."""


class Lines(Progress):
    """Prints one line per evaluated round; in long runs the first, the last, and one every few seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic, echo: Callable[[str], Any] = click.echo) -> None:
        super().__init__(clock)
        self.echo = echo
        self.prints_all = True
        self.printed_at: float | None = None

    def started(self, run: RunView) -> None:
        """Decides whether every evaluated round gets a line."""
        super().started(run)
        self.prints_all = self.rounds / run.settings.eval_every <= MAX_LINES

    def round_done(self, run: RunView, record: RoundRecord) -> None:  # noqa: ARG002
        """Prints the round if a line is due. Skipped clients are always printed."""
        self.update_accuracy(record.values)
        if record.skipped:
            self.echo(skipped_line(record))
        due = self.printed_at is None or self.clock() - self.printed_at >= LINE_SECONDS
        if record.evaluated and (self.prints_all or due or record.round == self.rounds):
            self.printed_at = self.clock()
            self.echo(self.line(record))

    def line(self, record: RoundRecord) -> str:
        """Returns accuracies, loss, speed and remaining time of a round."""
        values = record.values
        width = len(str(self.rounds))
        parts = [f"round {record.round:{width}}/{self.rounds}"]
        parts += [f"{title} {values[name]:.4f}" for name, title in ACCURACIES.items() if values.get(name) is not None]
        if values.get("train_loss") is not None:
            parts.append(f"loss {values['train_loss']:.4f}")
        if values.get("samples_per_second"):
            parts.append(f"{values['samples_per_second']:,.0f} samples/s")
        left = self.seconds_left(record.round)
        if left is not None and record.round < self.rounds:
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)


class Bar(Progress):
    """Shows a live line on a terminal: round, client, samples per second, accuracy, remaining time."""

    def __init__(self, console: Any = None, clock: Callable[[], float] = monotonic) -> None:
        from rich import progress
        from rich.console import Console

        super().__init__(clock)
        self.samples_per_second = ""
        console = console or Console()
        bar = [progress.BarColumn(bar_width=24)] if console.width >= BAR_COLUMNS else []
        self.bar = progress.Progress(
            progress.TextColumn("round {task.fields[round]}"),
            *bar,
            progress.TextColumn("{task.fields[clients]}", style="dim"),
            progress.TextColumn("{task.fields[pace]}"),
            progress.TextColumn("{task.fields[accuracy]}", style="bold"),
            progress.TextColumn("{task.fields[left]}", style="cyan"),
            console=console,
            transient=True,
        )

    def started(self, run: RunView) -> None:
        """Shows the bar."""
        super().started(run)
        self.task = self.bar.add_task("", total=self.rounds, round="", clients="", pace="", accuracy="", left="")
        self.show(self.start_round)
        self.bar.start()

    def client_done(self, round: int, done: int, total: int, report: LocalReport) -> None:  # noqa: ARG002
        """Advances the bar by one client."""
        self.show(round - 1 + done / total, clients=f"client {done}/{total}")

    def round_done(self, run: RunView, record: RoundRecord) -> None:  # noqa: ARG002
        """Updates accuracy and speed, and prints skipped clients."""
        self.update_accuracy(record.values)
        if record.values.get("samples_per_second"):
            self.samples_per_second = f"{record.values['samples_per_second']:,.0f} samples/s"
        if record.skipped:
            self.bar.console.print(skipped_line(record))
        self.show(record.round)

    def show(self, rounds_done: float, clients: str = "") -> None:
        """Redraws the line."""
        left = self.seconds_left(rounds_done)
        self.bar.update(
            self.task,
            completed=rounds_done,
            round=f"{min(int(rounds_done) + 1, self.rounds)}/{self.rounds}",
            clients=clients,
            pace=self.samples_per_second,
            accuracy="" if self.best is None else f"acc {self.accuracy:.3f} (best {self.best:.3f})",
            left="" if left is None else f"{duration(left)} left",
        )

    def close(self) -> None:
        """Removes the bar from the terminal."""
        self.bar.stop()


def chosen_progress(show: bool | None = None) -> Progress | None:
    """Returns a display of progress for Python: a bar in terminals and notebooks, otherwise lines.

    Args:
        show: True or False; None: in notebooks only.
    """
    notebook = in_notebook()
    if not (notebook if show is None else show):
        return None
    terminal = sys.stdout.isatty() and not notebook
    # Without ipywidgets, rich warns and shows nothing in a notebook.
    return Bar() if terminal or (notebook and find_spec("ipywidgets")) else Lines(echo=print)


def in_notebook() -> bool:
    """Returns whether this is a Jupyter notebook."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


def skipped_line(record: RoundRecord) -> str:
    """Returns a message about the clients that were skipped in a round."""
    clients = ", ".join(map(str, record.skipped))
    return f"round {record.round}: skipped clients {clients} (loss or parameters not finite)"


def duration(seconds: float) -> str:
    """Formats a duration with at most two units.

    >>> duration(7.4), duration(83), duration(754), duration(3700)
    ('7 s', '1 min 23 s', '12 min', '1 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
