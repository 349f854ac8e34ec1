"""A reproduced table: the paper's numbers beside ours, as text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import hypot
from statistics import fmean, median, stdev
from typing import Any

import pfl_fast
from pfl_fast.comparison.formats import Table
from pfl_fast.comparison.plan import ComparisonPlan
from pfl_fast.comparison.recipes import BASE, Column, Expected, Recipe
from pfl_fast.comparison.results import Comparison, Row, Run
from pfl_fast.data.catalogue import DATASETS
from pfl_fast.data.dataset import REAL, Dataset
from pfl_fast.engine.results.protocol import find_protocol
from pfl_fast.methods import METHODS

MEAN = "mean"
DATA = {
    "paper": "",
    "other": ": NOT the paper's data ({}), so numbers are not compared",
    "generated": ": generated, NOT the paper's data ({}), so nothing is compared",
}
WHAT = {"accuracy": "accuracy in %, {}", "time": "time of a round without tests, divided by that of FedAvg"}


@dataclass(frozen=True)
class Cell:
    """The paper's number beside ours: accuracies in percent, or times relative to FedAvg's.

    Attributes:
        column: name of the column.
        domain: name of the domain, ``"mean"`` over domains, or empty.
        row: name of the row.
        label: label of the row.
        paper: mean and standard deviation of the paper, None if it has none.
        ours: mean and standard deviation over seeds; None if all runs failed or are missing.
        seeds: seeds of our runs.
        data: a key of :data:`DATA`: numbers on other data than the paper's are not compared; orderings on other real
            data are.
    """

    column: str
    domain: str
    row: str
    label: str
    paper: Expected | None
    ours: Expected | None
    seeds: tuple[int, ...]
    data: str = "paper"

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return self.ours.mean - self.paper.mean if self.ours and self.paper and self.data == "paper" else None

    @property
    def deviations(self) -> float | None:
        """The difference in standard deviations: root of the sum of both variances; one if the other is not known."""
        if self.difference is None or self.ours is None or self.paper is None:
            return None
        spread = hypot(self.paper.deviation or 0.0, self.ours.deviation or 0.0)
        return self.difference / spread if spread else None


@dataclass(frozen=True)
class Ordering:
    """The difference between the paper's method and another row, in the paper and in ours.

    Attributes:
        column: name of the column.
        row: label of the other row.
        subject: label of the paper's method.
        paper: difference in the paper, in percent; positive: the method is better.
        ours: our difference.
        spread: standard deviation of our difference; None for one seed.
    """

    column: str
    row: str
    subject: str
    paper: float
    ours: float
    spread: float | None

    @property
    def verdict(self) -> str:
        """``"shows"``, ``"reversed"``, or ``"undecided"`` within one standard deviation."""
        if self.spread is not None and abs(self.ours) <= self.spread:
            return "undecided"
        return "shows" if self.paper * self.ours > 0 else "reversed"


@dataclass(frozen=True)
class Reproduction:
    """All cells of a recipe, and how the runs differ from the paper's.

    Attributes:
        recipe: the recipe, with the rows and columns that were run.
        seeds: seeds of the runs.
        scale: 1, or the scale of rounds and samples.
        changes: changed settings, by column.
        data: name, source and size of the data, by column.
        cells: the cells.
        failures: failed runs.
        command: command that reproduces the table.
    """

    recipe: Recipe
    seeds: tuple[int, ...]
    scale: float
    changes: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, str]
    cells: Sequence[Cell]
    failures: Sequence[str]
    command: str

    @property
    def orderings(self) -> list[Ordering]:
        """The paper's method against every other row."""
        found = []
        for place in dict.fromkeys((cell.column, cell.domain) for cell in self.cells):
            cells = [c for c in self.cells if (c.column, c.domain) == place and c.domain in ("", MEAN)]
            cells = [c for c in cells if c.data != "generated"]
            subject = next((cell for cell in cells if cell.row == self.recipe.subject), None)
            for cell in cells:
                if subject and cell is not subject and cell.paper and cell.ours and subject.paper and subject.ours:
                    known = cell.ours.deviation is not None and subject.ours.deviation is not None
                    found.append(
                        Ordering(
                            column=cell.column,
                            row=cell.label,
                            subject=subject.label,
                            paper=subject.paper.mean - cell.paper.mean,
                            ours=subject.ours.mean - cell.ours.mean,
                            spread=hypot(cell.ours.deviation, subject.ours.deviation) if known else None,  # type: ignore[arg-type]
                        )
                    )
        return found

    def heading(self) -> list[str]:
        """Returns lines on the table, its protocol, and all differences from the paper."""
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        protocol = find_protocol(self.recipe.protocol)
        lines = [
            f"{self.recipe.paper}, {self.recipe.name.partition('/')[2]}: {self.recipe.title}",
            f"{WHAT[self.recipe.quantity].format(protocol)}; mean ± standard deviation, ours over {seeds}",
        ]
        if self.scale != 1:
            lines.append(f"SCALED by {self.scale:g}: fewer rounds and samples than in the paper")
        for column, changes in self.changes.items():
            shown = ", ".join(f"{name} {before} -> {now}" for name, (before, now) in changes.items())
            lines += [f"{column}: {shown}"] if shown else []
        return [*lines, *(f"{column}: {text}" for column, text in self.data.items()), *self.recipe.notes]

    def csv(self) -> str:
        """Returns one line per cell, with all digits."""
        buffer = io.StringIO()
        names = ["column", "domain", "row", "label", "paper", "paper_std", "ours", "ours_std", "difference", "in_std"]
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*names, "seeds"])
        for cell in self.cells:
            numbers = [v for e in (cell.paper, cell.ours) for v in ((e.mean, e.deviation) if e else (None, None))]
            about = [cell.column, cell.domain, cell.row, cell.label]
            writer.writerow([*about, *numbers, cell.difference, cell.deviations, " ".join(map(str, cell.seeds))])
        return buffer.getvalue()

    def document(self) -> dict[str, Any]:
        """Returns everything for JSON."""
        return {
            "recipe": self.recipe.name,
            "version": pfl_fast.__version__,
            "command": self.command,
            "heading": self.heading(),
            "seeds": list(self.seeds),
            "scale": self.scale,
            "changes": {column: {n: list(v) for n, v in found.items()} for column, found in self.changes.items()},
            "data": dict(self.data),
            "cells": [
                {**asdict(c), "seeds": list(c.seeds), "difference": c.difference, "in_std": c.deviations}
                for c in self.cells
            ],
            "orderings": [{**asdict(o), "verdict": o.verdict} for o in self.orderings],
            "failures": list(self.failures),
        }


def reproduced_table(document: Mapping[str, Any]) -> Table:
    """Returns the table of a :meth:`Reproduction.document`: one line per cell, and the orderings below."""
    ours_are = (
        "ours (scaled)" if document["scale"] != 1 else "ours (changed)" if any(document["changes"].values()) else "ours"
    )
    lines = [["column", "row", "paper", ours_are, "difference", "in std", "seeds"]]
    for cell in document["cells"]:
        paper, ours = (Expected(**found) if found else None for found in (cell["paper"], cell["ours"]))
        missing = "" if cell["domain"] == MEAN else "not in the source"
        numbers = [signed(cell["difference"], 2), signed(cell["in_std"], 1)]
        column = f"{cell['column']} {cell['domain']}".strip()
        seeds = " ".join(map(str, cell["seeds"]))
        lines.append([column, cell["label"], str(paper or missing), str(ours or "failed"), *numbers, seeds])
    orderings = [
        f"{o['column']}: {o['subject']} - {o['row']}: paper {signed(o['paper'], 2)}, ours {signed(o['ours'], 2)}: "
        f"{o['verdict']}"
        for o in document["orderings"]
    ]
    return Table(document["heading"], lines, [*document["failures"], *orderings])


def signed(value: float | None, digits: int) -> str:
    """Formats a difference.

    >>> signed(1.234, 2), signed(-0.5, 1), signed(None, 1)
    ('+1.23', '-0.5', '')
    """
    return "" if value is None else f"{value:+.{digits}f}"


def cells_of(recipe: Recipe, column: Column, comparison: Comparison, plan: ComparisonPlan) -> list[Cell]:
    """Returns the cells of one column: one per row, or one per row and domain of the paper that our data has."""
    rows = {row.label: row for row in comparison.rows}
    data = data_of(plan.dataset, recipe.settings(column)["dataset"], recipe.quantity)
    ours = {domain: name for domain in column.domains if (name := _same(domain, plan.dataset.domains))}
    places: list[tuple[str, str | None]] = [*ours.items(), (MEAN if column.domains else "", None)]
    cells = []
    for row in recipe.rows:
        if row.label not in rows:
            continue
        found = rows[row.label]
        for domain, name in places:
            number = recipe.numbers.get((row.name, column.name, domain))
            cells.append(
                Cell(
                    column=column.name,
                    domain=domain,
                    row=row.name,
                    label=row.label,
                    paper=number if name else recipe.expected(row.name, column, ours or column.domains),
                    ours=_time(found, rows) if recipe.quantity == "time" else _percent(found, name),
                    seeds=tuple(sorted(found.runs)),
                    data=data,
                )
            )
    return cells


def data_of(dataset: Dataset, paper: str, quantity: str = "accuracy") -> str:
    """Returns the key of :data:`DATA` for a data set, beside the name of the paper's; times are always compared."""
    if quantity == "time":
        return "paper"
    return "generated" if dataset.source != REAL else "paper" if dataset.name == paper else "other"


def data_text(dataset: Dataset, paper: str) -> str:
    """Returns name and source of the data, how much of it there is if some is missing, and if it is not the paper's."""
    entry = DATASETS.get(dataset.name)
    sizes = (
        [(len(dataset), entry.samples, "samples"), (len(dataset.domains), entry.domains, "domains")] if entry else []
    )
    missing = "".join(f", {there:,} of {full:,} {what}" for there, full, what in sizes if there < full)
    text = f"{dataset.name} ({dataset.source}{missing})"
    return text + DATA[data_of(dataset, paper)].format(paper)


def _percent(row: Row, domain: str | None) -> Expected | None:
    found = row.statistics(domain)
    return Expected(100 * found[0], None if found[1] is None else 100 * found[1]) if found else None


def _time(row: Row, rows: Mapping[str, Row]) -> Expected | None:
    """Returns the time of a round divided by that of FedAvg with the same seed; None without FedAvg's run."""
    base = rows.get(METHODS[BASE].title)
    shared = sorted(row.runs.keys() & base.runs.keys()) if base else []
    ratios = [_seconds(row.runs[seed]) / _seconds(base.runs[seed]) for seed in shared] if base else []
    return Expected(fmean(ratios), stdev(ratios) if len(ratios) > 1 else None) if ratios else None


def _seconds(run: Run) -> float:
    """Returns the median seconds of a round, without tests."""
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    trained = [record["seconds_by_part"] for record in records if record.get("samples")]
    return float(median(sum(v for name, v in laps.items() if not name.startswith("test_")) for laps in trained))


def _same(domain: str, known: Sequence[str]) -> str | None:
    """Returns the name in ``known`` of a domain, whose spelling differs between copies of the data.

    >>> _same("MNIST_M", ["mnist", "mnist_m"]), _same("caltech", ["caltech10"]), _same("SVHN", ["usps"])
    ('mnist_m', 'caltech10', None)
    """

    def letters(name: str) -> str:
        return "".join(c for c in name.lower() if c.isalpha())

    return next((name for name in known if letters(name) == letters(domain)), None)
