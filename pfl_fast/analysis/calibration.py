"""Calibration: agreement of predicted probabilities and accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pfl_fast.analysis.figures import COLOURS, plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun, predictions

BINS = 15


def reliability(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> NDArray[np.float64]:
    """Returns samples, mean confidence and accuracy of each bin of equal width ``[bins, 3]``; NaN in empty bins."""
    c, hit = np.asarray(confidence, float), np.asarray(correct, float)
    place = np.clip(np.ceil(c * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins).astype(float)
    sums = [np.bincount(place, weights=values, minlength=bins) for values in (c, hit)]
    means = [np.divide(total, counts, out=np.full(bins, np.nan), where=counts > 0) for total in sums]
    return np.stack([counts, *means], 1)


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """Returns the expected calibration error ``sum_b n_b / n |accuracy_b - confidence_b|`` (Guo et al., ICML 2017).

    >>> round(ece([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], bins=10), 3)
    0.1
    """
    counts, confident, accurate = reliability(confidence, correct, bins).T
    full = counts > 0
    return float((counts[full] * np.abs(accurate - confident)[full]).sum() / counts.sum())


def calibration(run: FinishedRun, request: AnalysisOptions) -> Result:
    """Returns the ECE of each client's model, and the reliability over the samples of all clients."""
    split = request.split or "test"
    confidence, correct, rows = [], [], []
    for client, name in enumerate(run.client_names):
        x, y = run.samples(client, split, request.samples)
        probability, label = torch.softmax(predictions(run.method, run.client(client), x).double(), 1).max(1)
        hit = label == y
        confidence.append(probability.numpy())
        correct.append(hit.numpy())
        rows.append([name, len(y), hit.double().mean().item(), probability.mean().item(), ece(probability, hit)])
    every = np.concatenate(confidence), np.concatenate(correct)
    rows.append(["all", len(every[0]), every[1].mean(), every[0].mean(), ece(*every)])
    bins = reliability(*every)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        plain_axes(left, "predicted probability", "accuracy")
        left.plot([0, 1], [0, 1], color="#999999", linewidth=1)
        left.plot(bins[:, 1], bins[:, 2], "o-", color=COLOURS[0], markersize=4)
        left.set_title(f"all clients: ECE {rows[-1][4]:.3f}", loc="left")
        plain_axes(right, run.client_label, "ECE")
        right.bar(range(run.clients), [row[4] for row in rows[:-1]], color=COLOURS[0])
        if sum(map(len, run.client_names)) < 40:
            right.set_xticks(range(run.clients), run.client_names)

    return Result(
        "Calibration",
        f"Expected calibration error over {BINS} bins of the largest predicted probability, {split} samples (at most "
        f"{request.samples} of a client). Left: reliability; on the diagonal, probabilities are right.",
        [run.client_label, "samples", "accuracy", "mean probability", "ECE"],
        rows,
        draw,
        (7.0, 3.2),
    )
