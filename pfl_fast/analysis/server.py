"""Accuracy of the server's model on all test samples, and mean accuracy of the clients (FediOS Table 2)."""

from __future__ import annotations

import numpy as np

from pfl_fast.analysis.figures import lines
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun

CURVES = {
    "server": "test_accuracy_global",
    "clients, after aggregation": "test_accuracy_after_agg",
    "clients, after local training": "test_accuracy_after_local",
}


def global_accuracy(run: FinishedRun, options: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns the accuracy of the server's and the clients' models by round; last row: mean of the last five."""
    records = [r for r in run.experiment.records if any(r.get(name) is not None for name in CURVES.values())]
    if not any(r.get("test_accuracy_global") is not None for r in records):
        raise AnalysisError("the run tested no model of the server")
    table = np.array([[np.nan if r.get(n) is None else r[n] for n in CURVES.values()] for r in records], float)
    rounds = [r["round"] for r in records]
    kept = {label: table[:, i] for i, label in enumerate(CURVES) if np.isfinite(table[:, i]).any()}
    last = [np.nanmean(values[-5:]) for values in kept.values()]
    return Result(
        "Accuracy of the server's model",
        "Accuracy of the server's model on the union of the clients' test samples, and of the clients' models on "
        "their own; last row: mean of the last five evaluated rounds (FediOS, Table 2).",
        ["round", *kept],
        [*([number, *row] for number, *row in zip(rounds, *kept.values(), strict=True)), ["mean of the last 5", *last]],
        lambda figure: lines(
            figure, {label: (rounds, values) for label, values in kept.items()}, "communication round", "test accuracy"
        ),
        (6.4, 3.2),
    )
