"""A comparison as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

from pfl_fast import atomic
from pfl_fast.comparison.results import Comparison, Row

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def heading(comparison: Comparison) -> list[str]:
    """Returns lines on data, partition and protocol."""
    count, protocol = len(comparison.seeds), comparison.protocol
    spread = f"mean ± sample standard deviation over {count} seeds" if count > 1 else f"seed {comparison.seeds[0]}"
    return [
        f"data       {comparison.data}",
        f"partition  {comparison.partition}",
        f"accuracy   in %, {protocol}; protocol {protocol.name}; {spread}",
    ]


def text(comparison: Comparison) -> str:
    """Returns a table for terminals."""
    lines = _cells(comparison, lambda cell, _: cell)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*heading(comparison), "", *rows, *_remarks(comparison), ""])


def markdown(comparison: Comparison) -> str:
    """Returns a Markdown table; the best mean of each column is bold."""
    head, *rows = _cells(comparison, lambda cell, best: f"**{cell}**" if best else cell)
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*(f"{line}  " for line in heading(comparison)), "", *table, *_remarks(comparison), ""])


def latex(comparison: Comparison) -> str:
    """Returns a LaTeX table for the package booktabs; the best mean of each column is bold."""

    def cell(value: str, best: bool) -> str:
        number = (
            f"${value.replace('±', chr(92) + 'pm')}$" if re.fullmatch(r"[\d.]+( ± [\d.]+)?", value) else escape(value)
        )
        return rf"{{\boldmath {number}}}" if best else number

    head, *rows = _cells(comparison, cell)
    lines = [[escape(head[0]), *map(escape, head[1:])], *([escape(row[0]), *row[1:]] for row in rows)]
    first, *rest = [" & ".join(line) + r" \\" for line in lines]
    comments = [f"% {line}" for line in (*heading(comparison), *_remarks(comparison)) if line]
    begin = rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}"
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


def _cells(comparison: Comparison, write: Callable[[str, bool], str]) -> list[list[str]]:
    """Returns the table, header first; ``write`` gets each cell and whether its mean is the best of the column."""
    columns: list[str | None] = [*comparison.domains, None]
    head = ["method", *(column or ("mean" if comparison.domains else "accuracy") for column in columns), "seeds"]
    means = [[round(100 * s[0], 2) for row in comparison.rows if (s := row.statistics(c))] for c in columns]
    lines = [head]
    for row in comparison.rows:
        cells = []
        for column, of_all in zip(columns, means, strict=True):
            found = row.statistics(column)
            best = found is not None and len(of_all) > 1 and round(100 * found[0], 2) == max(of_all)
            cells.append(write(percent(found) or "failed", best))
        lines.append([row.label, *cells, " ".join(map(str, sorted(row.runs)))])
    return lines


def _remarks(comparison: Comparison) -> list[str]:
    """Returns lines below the table: failed runs, settings that differ."""
    failed = [
        f"failed: {row.label} seed {seed}: {message}"
        for row in comparison.rows
        for seed, message in sorted(row.failures.items())
    ]
    return ["", *failed, *comparison.notes] if failed or comparison.notes else []


def _failed(row: Row) -> str:
    return " ".join(f"seed {seed}" for seed in sorted(row.failures))


FORMATS = {"txt": text, "md": markdown, "tex": latex, "csv": comma_separated}


def write_tables(comparison: Comparison, folder: Path) -> list[str]:
    """Writes ``results.txt``, ``.md``, ``.tex`` and ``.csv``; returns the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, write in FORMATS.items():
        atomic.write_text(folder / f"results.{suffix}", write(comparison))
    return [f"results.{suffix}" for suffix in FORMATS]
