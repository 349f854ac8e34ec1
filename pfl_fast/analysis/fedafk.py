"""Analysis of FedAFK: the mixing weight mu over rounds and clients."""

from __future__ import annotations

from typing import Any

from pfl_fast.analysis.figures import heatmap, lines
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun


def mixing_weights(run: FinishedRun, options: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns mu of each client by round, and at the end of the run."""
    if not run.option("afa"):
        raise AnalysisError("the run mixes no extractors (afa=false)")
    rounds, values = run.recorded("mu")
    final = [float(run.tensors(client)["mixing.mu"]) for client in range(run.clients)]
    names = run.client_names

    def draw(figure: Any) -> None:
        left, right = figure.subfigures(1, 2, width_ratios=(1, 1.2))
        spread = {"mean": values.mean(1), "lowest client": values.min(1), "highest client": values.max(1)}
        axes = lines(left, {name: (rounds, curve) for name, curve in spread.items()}, "communication round", "mu")
        axes.legend(frameon=False, fontsize=8)
        shown = [str(number) for number in rounds]
        heatmap(right, values.T, "communication round", run.client_label, "mu", None, None, names, shown)

    return Result(
        "Mixing weight mu",
        "Weight mu_i of the personal extractor in mu_i theta_i + (1 - mu_i) theta_G,i, mean over the steps of each "
        "evaluated round, and at the end of the run (FedAFK, Eq. 3 and 6).",
        [run.client_label, *(f"round {number}" for number in rounds), "end"],
        [[name, *own, last] for name, own, last in zip(names, values.T, final, strict=True)],
        draw,
        (8.6, max(3.2, 0.22 * run.clients + 1)),
    )
