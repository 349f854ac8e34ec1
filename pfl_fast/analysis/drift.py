"""Drift of the clients from the server's model during local training, by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_fast.analysis.figures import heatmap, lines
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun, shared_parameters


def relative_distance(own: Tensor, other: Tensor) -> float:
    """Returns ``|own - other| / |other|``.

    >>> relative_distance(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0]))
    0.75
    """
    norm = torch.linalg.vector_norm(other.double())
    return float(torch.linalg.vector_norm(own.double() - other.double()) / norm) if norm else float("nan")


def drift(run: FinishedRun, request: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns the relative distance of each shared tensor after local training from the received one, by round."""
    names = shared_parameters(run)
    if not names:
        raise AnalysisError("no parameter is both received and uploaded in this run")
    layers = list(dict.fromkeys(name.rsplit(".", 1)[0] for name in names))
    rows, by_client, found = [], np.empty(0), []
    for snapshot in run.snapshots():
        values = []
        for client in snapshot.clients:
            before, after = snapshot.before(client), snapshot.after_local(client)
            values.append([
                relative_distance(*(torch.cat([t[n].flatten() for n in names if n.rsplit(".", 1)[0] == layer])
                                    for t in (after, before)))
                for layer in layers
            ])  # fmt: skip
            rows.append([snapshot.round, run.client_names[client], *values[-1]])
        by_client = np.array(values)
        found.append((snapshot.round, by_client.mean(0), [run.client_names[c] for c in snapshot.clients]))

    def draw(figure: Any) -> None:
        upper, lower = figure.subfigures(1, 2, width_ratios=(1.25, 1))
        rounds = [number for number, _, _ in found]
        if len(layers) <= 8:
            curves = {layer: (rounds, [mean[i] for _, mean, _ in found]) for i, layer in enumerate(layers)}
            lines(upper, curves, "communication round", "relative distance, mean over clients")
        else:
            means = np.array([mean for _, mean, _ in found]).T
            heatmap(upper, means, "communication round", "layer", "relative distance", None, None, layers,
                    [str(r) for r in rounds])  # fmt: skip
        heatmap(lower, by_client.T, run.client_label, "layer" if len(layers) > 8 else "", f"round {rounds[-1]}", None,
                None, [layer.replace("extractor", "ext.") for layer in layers], found[-1][2])  # fmt: skip

    return Result(
        "Drift from the global model by layer",
        "Distance |w_i - w| / |w| of each client's shared parameters w_i after local training from the received w. "
        "Left: mean over clients; right: clients in the last snapshot.",
        ["round", run.client_label, *layers],
        rows,
        draw,
        (9.0, 3.4),
    )
