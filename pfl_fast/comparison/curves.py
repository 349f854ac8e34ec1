"""Learning curves of a comparison as PNG, PDF and SVG."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pfl_fast import atomic
from pfl_fast.comparison.results import Comparison, Row
from pfl_fast.engine.results.protocol import POINTS, REDUCTIONS

# Okabe and Ito's colours, distinguishable with every kind of colour blindness; yellow is too light on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.")  # the next style when all colours are used
MARKERS = "osD^vPX*"  # one more than colours: rows of equal colours have different markers
FORMATS = ("png", "pdf", "svg")
# Equal results give equal files: no dates, no random identifiers.
METADATA: dict[str, dict[str, str | None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def draw_curves(comparison: Comparison, folder: Path) -> list[str]:
    """Writes ``curves.png``, ``.pdf`` and ``.svg``: mean over seeds, with a band of one standard deviation.

    Returns the names of the files.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = [row for row in comparison.rows if row.runs]
    figure = Figure(figsize=(7.5, max(4.2, 0.24 * len(rows) + 1.2)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, row in enumerate(rows):
        rounds, mean, deviation = mean_curve(row)
        colour, line = COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]
        marker = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5}
        finetuned = any(run.measured.after_finetune for run in row.runs.values())
        end = len(rounds) - finetuned
        (drawn,) = axes.plot(rounds[:end], mean[:end], color=colour, linestyle=line, linewidth=1.6, label=row.label)
        drawn.set(**marker, markevery=max(1, len(rounds) // 8))
        if finetuned:
            axes.plot(rounds[-2:], mean[-2:], color=colour, linestyle=":", linewidth=1)
            axes.plot(rounds[-1:], mean[-1:], color=colour)[0].set(**marker)
        axes.fill_between(
            rounds[:end],
            (mean - deviation)[:end],
            (mean + deviation)[:end],
            color=colour,
            alpha=min(0.18, 1 / len(rows)),
            lw=0,
        )
    protocol = comparison.protocol
    point = POINTS["after_agg" if protocol.point == "after_finetune" else protocol.point]
    axes.set(xlabel="communication round", ylabel=f"test accuracy in %\n{point}, {REDUCTIONS[protocol.reduction]}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    count = len(comparison.seeds)
    band = f"mean and standard deviation over {count} seeds" if count > 1 else f"seed {comparison.seeds[0]}"
    tuned = "; after the dotted line: final fine-tune" if any("final fine-tune" in n for n in comparison.notes) else ""
    axes.set_title(f"{comparison.data}, {comparison.partition}\n{band}{tuned}", fontsize=9, loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    with mpl.rc_context({"svg.hashsalt": "pfl-fast", "pdf.fonttype": 42}):
        for suffix in FORMATS:
            with atomic.new_file(folder / f"curves.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix, metadata=METADATA[suffix])
    return [f"curves.{suffix}" for suffix in FORMATS]


def mean_curve(row: Row) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rounds ``[n]``, and mean and standard deviation ``[n]`` in percent of the seeds with these rounds."""
    values: dict[int, list[float]] = {}
    for run in row.runs.values():
        for number, accuracy in run.measured.curve:
            values.setdefault(number, []).append(100 * accuracy)
    rounds = sorted(values)
    deviations = [np.std(values[r], ddof=1) if len(values[r]) > 1 else 0.0 for r in rounds]
    return np.array(rounds), np.array([np.mean(values[r]) for r in rounds]), np.array(deviations)
