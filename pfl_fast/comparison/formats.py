"""A comparison as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from pfl_fast import atomic
from pfl_fast.comparison.results import Comparison, Row

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        heading: lines above the table.
        lines: cells; the first line is the header.
        remarks: lines below the table.
        bold: line and column of the cells that are bold in Markdown and LaTeX.
    """

    heading: list[str]
    lines: list[list[str]]
    remarks: list[str]
    bold: frozenset[tuple[int, int]] = frozenset()


def heading(comparison: Comparison) -> list[str]:
    """Returns lines on data, partition and protocol."""
    count, protocol = len(comparison.seeds), comparison.protocol
    spread = f"mean ± sample standard deviation over {count} seeds" if count > 1 else f"seed {comparison.seeds[0]}"
    return [
        f"data       {comparison.data}",
        f"partition  {comparison.partition}",
        f"accuracy   in %, {protocol}; protocol {protocol.name}; {spread}",
    ]


def table_of(comparison: Comparison) -> Table:
    """Returns the table of a comparison; the best mean of each column is bold."""
    columns: list[str | None] = [*comparison.domains, None]
    means = [[round(100 * s[0], 2) for row in comparison.rows if (s := row.statistics(c))] for c in columns]
    lines = [["method", *(column or ("mean" if comparison.domains else "accuracy") for column in columns), "seeds"]]
    bold = set()
    for row in comparison.rows:
        cells = [percent(row.statistics(column)) or "failed" for column in columns]
        for number, (column, of_all) in enumerate(zip(columns, means, strict=True), 1):
            found = row.statistics(column)
            if found is not None and len(of_all) > 1 and round(100 * found[0], 2) == max(of_all):
                bold.add((len(lines), number))
        lines.append([row.label, *cells, " ".join(map(str, sorted(row.runs)))])
    return Table(heading(comparison), lines, _remarks(comparison), frozenset(bold))


def text(table: Table) -> str:
    """Returns a table for terminals."""
    widths = [max(len(line[column]) for line in table.lines) for column in range(len(table.lines[0]))]
    rows = ["  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip() for line in table.lines]
    return "\n".join([*table.heading, "", *rows, *_below(table), ""])


def markdown(table: Table) -> str:
    """Returns a Markdown table."""
    head, *rows = [
        [_pipes(f"**{cell}**" if (i, j) in table.bold else cell) for j, cell in enumerate(line)]
        for i, line in enumerate(table.lines)
    ]
    lines = [f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows]]
    remarks = [f"{line}  " if line else "" for line in _below(table)]
    return "\n".join([*(f"{line}  " for line in table.heading), "", *lines, *remarks, ""])


def latex(table: Table) -> str:
    """Returns a LaTeX table for the package booktabs."""
    lines = [
        [rf"{{\boldmath {_number(cell)}}}" if (i, j) in table.bold else _number(cell) for j, cell in enumerate(line)]
        for i, line in enumerate(table.lines)
    ]
    first, *rest = [" & ".join(line) + r" \\" for line in lines]
    comments = [f"% {line}" for line in (*table.heading, *table.remarks) if line]
    begin = rf"\begin{{tabular}}{{l{'c' * (len(lines[0]) - 1)}}}"
    return "\n".join([*comments, begin, r"\toprule", first, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}", ""])


def comma_separated(comparison: Comparison) -> str:
    """Returns CSV: one line per row, accuracies from 0 to 1 with all digits, one column per seed."""
    columns: list[str | None] = [None, *comparison.domains]
    head = ["method", *(f"{column or 'accuracy'} {what}" for column in columns for what in ("mean", "std"))]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*head, *(f"seed {seed}" for seed in comparison.seeds), "failed"])
    for row in comparison.rows:
        found = [row.statistics(column) or (None, None) for column in columns]
        accuracies = [row.runs[s].measured.accuracy if s in row.runs else None for s in comparison.seeds]
        writer.writerow([row.label, *(value for pair in found for value in pair), *accuracies, _failed(row)])
    return buffer.getvalue()


def escape(value: str) -> str:
    r"""Escapes the special characters of LaTeX.

    >>> print(escape("FedCP cpn_depth=2 & 50%"))
    FedCP cpn\_depth=2 \& 50\%
    """
    return "".join(LATEX.get(character, character) for character in value)


def percent(statistics: tuple[float, float | None] | None) -> str:
    """Formats mean and standard deviation in percent.

    >>> percent((0.8125, 0.01)), percent((0.5, None)), percent(None)
    ('81.25 ± 1.00', '50.00', '')
    """
    if statistics is None:
        return ""
    mean, deviation = statistics
    return f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def _number(cell: str) -> str:
    """Returns a cell for LaTeX: numbers in mathematics, so that a minus is one."""
    if re.fullmatch(r"[-+]?[\d.]+( ± [\d.]+)?", cell) and not cell.isdigit():
        return f"${cell.replace('±', chr(92) + 'pm')}$"
    return escape(cell)


def _pipes(cell: str) -> str:
    return cell.replace("|", "\\|")


def _below(table: Table) -> list[str]:
    return ["", *table.remarks] if table.remarks else []


def _remarks(comparison: Comparison) -> list[str]:
    """Returns lines below the table: failed runs, settings that differ."""
    failed = [
        f"failed: {row.label} seed {seed}: {message}"
        for row in comparison.rows
        for seed, message in sorted(row.failures.items())
    ]
    return [*failed, *comparison.notes]


def _failed(row: Row) -> str:
    return " ".join(f"seed {seed}" for seed in sorted(row.failures))


FORMATS = {"txt": text, "md": markdown, "tex": latex}


def write_tables(table: Table, folder: Path, **others: str) -> list[str]:
    """Writes ``results.txt``, ``.md``, ``.tex`` and the contents of ``others`` by suffix; returns the file names."""
    contents = {**{suffix: write(table) for suffix, write in FORMATS.items()}, **others}
    for suffix, content in contents.items():
        atomic.write_text(folder / f"results.{suffix}", content)
    return [f"results.{suffix}" for suffix in contents]
