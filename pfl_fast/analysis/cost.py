"""Cost of a run: time, rounds to the best accuracy, parameters sent (FedCP Table 3, FedAFK Table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pfl_fast.analysis.figures import COLOURS, plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun

ACCURACIES = ("test_accuracy_after_agg", "test_accuracy_after_local")


def rounds_to_best(accuracies: Sequence[tuple[int, float]]) -> int:
    """Returns the round of the best accuracy, the first one if several are equal.

    >>> rounds_to_best([(1, 0.2), (2, 0.5), (3, 0.5)])
    2
    """
    return max(accuracies, key=lambda pair: (pair[1], -pair[0]))[0]


def totals(run: FinishedRun) -> dict[str, Any]:
    """Returns the cost of a run, by quantity and unit."""
    records = [r for r in run.experiment.records if r["round"] > 0]
    name = next((n for n in ACCURACIES if any(r.get(n) is not None for r in records)), None)
    accuracies = [(r["round"], r[name]) for r in records if name and r.get(name) is not None]
    best = rounds_to_best(accuracies) if accuracies else None
    parts = [r["seconds_by_part"]["local"] - r["seconds_by_part"].get("test_local", 0) for r in records]
    clients = [max(1, r["clients_trained"]) for r in records]
    sent = [r["uploaded_values"] + r["downloaded_values"] for r in records]
    table = run.experiment.part_table
    prediction = sum(s.value.numel() for s in table.model_specs if s.parameter)
    return {
        "best test accuracy": dict(accuracies).get(best) if best else None,
        "round of the best accuracy": best,
        "local training in a round (s, mean)": float(np.mean(parts)),
        "whole round (s, mean)": float(np.mean([r["seconds"] for r in records])),
        "local training to the best round (s)": float(sum(parts[: best or len(parts)])),
        "parameters of a client": prediction,
        "parameters sent both ways, per client and round": float(np.mean(np.array(sent) / clients)),
        "parameters sent both ways to the best round": float(sum(sent[: best or len(sent)])),
    }


def cost(run: FinishedRun, request: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns time, rounds and parameters sent; draws the accuracy over the parameters sent."""
    records = [r for r in run.experiment.records if r["round"] > 0]
    name = next((n for n in ACCURACIES if any(r.get(n) is not None for r in records)), None)
    sent = np.cumsum([r["uploaded_values"] + r["downloaded_values"] for r in records]) / 1e6
    seconds = np.cumsum([r["seconds_by_part"]["local"] for r in records])

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        shown = [i for i, r in enumerate(records) if name and r.get(name) is not None]
        for place, x, label, colour in zip(
            axes, (sent, seconds), ("parameters sent (million)", "local training (s)"), COLOURS, strict=False
        ):
            plain_axes(place, label, "test accuracy" if place is axes[0] else "")
            place.plot(x[shown], [records[i][str(name)] for i in shown], "o-", color=colour, markersize=3)

    return Result(
        "Cost",
        "Time of local training, rounds to the best test accuracy and parameters sent by and to clients (FedCP "
        f"Table 3, FedAFK Table 4); executor {run.experiment.settings.executor}. Times depend on the machine.",
        ["quantity", "value"],
        list(totals(run).items()),
        draw,
        (7.0, 3.0),
    )
