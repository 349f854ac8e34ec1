"""Result of an analysis: a table with title and caption, and a figure; written as JSON, CSV and SVG, PNG or PDF."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfl_fast import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
# Equal results give equal files: no dates, no random identifiers.
METADATA: dict[str, dict[str, str | None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


@dataclass(frozen=True)
class Result:
    """Table and figure of an analysis.

    Attributes:
        title: what the table shows, such as ``"Sparsity ratio of the features"``.
        caption: definition of the values; data, method, rounds and seed of the run are added.
        columns: names of the columns, with units.
        rows: values: numbers, text or None.
        draw: draws on an empty figure.
        size: width and height of the figure in inches.
    """

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    draw: Callable[[Figure], object]
    size: tuple[float, float] = (6.0, 3.6)

    def write(self, folder: Path, name: str, formats: Sequence[str] = ("svg",)) -> list[Path]:
        """Writes ``NAME.json``, ``NAME.csv`` and the figure in each of ``formats``; returns the files."""
        rows = [[_plain(value) for value in row] for row in self.rows]
        table = {"title": self.title, "caption": self.caption, "columns": list(self.columns), "rows": rows}
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *rows])
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(folder / f"{name}.json", json.dumps(table, indent=1) + "\n")
        atomic.write_text(folder / f"{name}.csv", text.getvalue())
        figures = self._write_figure(folder, name, formats)
        return [folder / f"{name}.json", folder / f"{name}.csv", *figures]

    def _write_figure(self, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        files = [folder / f"{name}.{suffix}" for suffix in formats]
        style: Any = {"svg.hashsalt": "pfl-fast", "pdf.fonttype": 42, "font.size": 9, "axes.titlesize": 9}
        with mpl.rc_context(style):
            figure = Figure(figsize=self.size, dpi=150, layout="constrained")
            FigureCanvasAgg(figure)
            self.draw(figure)
            for file, suffix in zip(files, formats, strict=True):
                with atomic.new_file(file) as temporary:
                    figure.savefig(temporary, format=suffix, metadata=METADATA[suffix])
        return files


def _plain(value: Any) -> Any:
    """Returns a value for JSON: Python numbers, None for NaN and infinities."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
