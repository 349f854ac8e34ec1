"""Fairness: distribution of the accuracy over clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pfl_fast.analysis.figures import COLOURS, plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun


def gini(values: ArrayLike) -> float:
    """Returns the Gini coefficient ``sum_ij |v_i - v_j| / (2 n^2 mean)``: 0 if all are equal.

    >>> gini([0, 0, 0, 1])
    0.75
    """
    v = np.sort(np.asarray(values, float))
    n, total = len(v), v.sum()
    return float((2 * np.arange(1, n + 1) - n - 1) @ v / (n * total)) if total else 0.0


def worst_decile(values: ArrayLike) -> float:
    """Returns the mean of the lowest tenth of the values, at least one.

    >>> worst_decile(range(20))
    0.5
    """
    v = np.sort(np.asarray(values, float))
    return float(v[: max(1, len(v) // 10)].mean())


def fairness(run: FinishedRun, request: AnalysisOptions) -> Result:  # noqa: ARG001 every analysis has both arguments
    """Returns mean, standard deviation, worst decile and Gini coefficient of the clients' accuracies by round."""
    last = [name for name in ("test_accuracy_after_agg", "test_accuracy_after_local") if _by_round(run, name)]
    if not last:
        raise AnalysisError("the run tested no client")
    by_round = _by_round(run, last[0])
    rows = [
        [number, np.mean(v), np.std(v), worst_decile(v), np.min(v), np.max(v), gini(v)]
        for number, v in sorted(by_round.items())
    ]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
        final = np.sort(by_round[max(by_round)])
        plain_axes(left, "client, by accuracy", f"test accuracy after round {max(by_round)}")
        left.bar(np.arange(1, len(final) + 1), final, color=COLOURS[0])
        left.axhline(final.mean(), color=COLOURS[1], linewidth=1.2)
        plain_axes(right, "communication round", "test accuracy over clients")
        table = np.array(rows, float)
        right.fill_between(table[:, 0], table[:, 4], table[:, 5], color=COLOURS[0], alpha=0.15, lw=0, label="range")
        right.plot(table[:, 0], table[:, 1], color=COLOURS[1], label="mean")
        right.plot(table[:, 0], table[:, 3], "--", color=COLOURS[0], label="worst decile")
        right.legend(frameon=False, fontsize=8)

    when = "after aggregation" if last[0].endswith("agg") else "after local training"
    return Result(
        "Fairness over clients",
        f"Accuracy of each client's model on its test samples, {when}; worst decile: mean of the lowest tenth of the "
        "clients; Gini coefficient: 0 if all are equal. Left: last evaluated round, with the mean.",
        ["round", "mean", "standard deviation", "worst decile", "minimum", "maximum", "Gini coefficient"],
        rows,
        draw,
        (7.2, 3.2),
    )


def _by_round(run: FinishedRun, column: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row in run.rows:
        if row.get(column) is not None:
            found.setdefault(int(row["round"]), []).append(row[column])
    return found
