"""How a run is going: a live bar on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import click

from pfl_fast.engine.local.single import LocalReport
from pfl_fast.engine.results.listeners import Listener, RunView
from pfl_fast.engine.results.records import RoundRecord

FEW_LINES = 40  # a run that evaluates no more often than this gets a line for each
LINE_SECONDS = 5.0  # otherwise at least so long from one line to the next
WIDE = 105  # columns; below, the numbers are worth more than the bar
ACCURACIES = {"test_accuracy_after_agg": "after aggregation", "test_accuracy_after_local": "after local training"}


class Progress(Listener):
    """Keeps what both kinds show: rounds, the accuracy so far and the pace.

    Args:
        clock: seconds from some fixed moment.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.rounds = 0
        self.begun_at = self.begun_from = 0.0
        self.accuracy: float | None = None
        self.best: float | None = None

    def started(self, run: RunView) -> None:
        """Takes over what a resumed run has reached already."""
        self.rounds = run.last_round
        self.begun_at, self.begun_from = self.clock(), run.state.rounds_done
        for values in run.records:
            self.note_accuracy(values)

    def note_accuracy(self, values: dict[str, Any]) -> None:
        """Follows the first accuracy that is measured: after aggregation unless only local training is tested."""
        found = next((values[name] for name in ACCURACIES if values.get(name) is not None), None)
        if found is not None:
            self.accuracy = found
            self.best = found if self.best is None else max(self.best, found)

    def seconds_left(self, rounds_done: float) -> float | None:
        """At the pace so far."""
        done = rounds_done - self.begun_from
        return (self.clock() - self.begun_at) / done * (self.rounds - rounds_done) if done > 0 else None

    def close(self) -> None:
        """At the end, whatever it was."""


class Lines(Progress):
    """One line per evaluated round; in long runs the first, the last, and one every few seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic, echo: Callable[[str], Any] = click.echo) -> None:
        super().__init__(clock)
        self.echo = echo
        self.all_fit = True
        self.printed_at: float | None = None

    def started(self, run: RunView) -> None:
        """Counts the lines to come."""
        super().started(run)
        self.all_fit = self.rounds / run.settings.eval_every <= FEW_LINES

    def round_done(self, run: RunView, record: RoundRecord) -> None:  # noqa: ARG002
        """Prints the round if it is due; clients that were left out are always said."""
        self.note_accuracy(record.values)
        if record.skipped:
            self.echo(skipped_line(record))
        due = self.printed_at is None or self.clock() - self.printed_at >= LINE_SECONDS
        if record.evaluated and (self.all_fit or due or record.round == self.rounds):
            self.printed_at = self.clock()
            self.echo(self.line(record))

    def line(self, record: RoundRecord) -> str:
        """Everything about a round that fits into a line."""
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
    """A live line on a terminal: rounds, clients of this round, samples per second, accuracy, time left."""

    def __init__(self, console: Any = None, clock: Callable[[], float] = monotonic) -> None:
        from rich import progress
        from rich.console import Console

        super().__init__(clock)
        self.samples_per_second = ""
        console = console or Console()
        bar = [progress.BarColumn(bar_width=24)] if console.width >= WIDE else []
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
        self.show(self.begun_from)
        self.bar.start()

    def client_done(self, round: int, done: int, total: int, report: LocalReport) -> None:  # noqa: ARG002
        """Moves on by a part of a round."""
        self.show(round - 1 + done / total, clients=f"client {done}/{total}")

    def round_done(self, run: RunView, record: RoundRecord) -> None:  # noqa: ARG002
        """Shows what the round has reached."""
        self.note_accuracy(record.values)
        if record.values.get("samples_per_second"):
            self.samples_per_second = f"{record.values['samples_per_second']:,.0f} samples/s"
        if record.skipped:
            self.bar.console.print(skipped_line(record))
        self.show(record.round)

    def show(self, rounds_done: float, clients: str = "") -> None:
        """Draws the line anew."""
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
        """Gives the terminal back."""
        self.bar.stop()


def skipped_line(record: RoundRecord) -> str:
    """Says which clients a round went without."""
    return f"round {record.round}: not finite, left out: clients {', '.join(map(str, record.skipped))}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as few as needed.

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
