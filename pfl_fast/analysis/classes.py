"""Classes of the clients: accuracy of each client for each class, and numbers of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pfl_fast.analysis.figures import heatmap
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun, predictions


def class_accuracy(predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Returns the recall of each class ``[classes]``; NaN for classes without samples.

    >>> class_accuracy(np.array([0, 1, 1]), np.array([0, 0, 1]), 3)
    array([0.5, 1. , nan])
    """
    counts = np.bincount(labels, minlength=classes)
    correct = np.bincount(labels[predicted == labels], minlength=classes)
    recall: NDArray[np.float64] = np.divide(correct, counts, out=np.full(classes, np.nan), where=counts > 0)
    return recall


def _table(run: FinishedRun, values: NDArray[np.float64]) -> list[Sequence[object]]:
    return [[name, *row] for name, row in zip(run.client_names, values, strict=True)]


def accuracy_heatmap(run: FinishedRun, request: AnalysisOptions) -> Result:
    """Returns the recall of each class on the samples of each client, with the client's own model."""
    split, count = request.split or "test", len(run.classes)
    values = []
    for client in range(run.clients):
        x, y = run.samples(client, split, request.samples)
        logits = predictions(run.method, run.client(client), x)
        values.append(class_accuracy(logits.argmax(1).numpy(), y.numpy(), count))
    table = np.array(values)
    return Result(
        "Accuracy by client and class",
        f"Share of correct predictions of each client's model among its {split} samples of a class (at most "
        f"{request.samples} samples of a client); empty cells: no samples.",
        [run.client_label, *run.classes],
        _table(run, table),
        lambda figure: heatmap(
            figure, table, "class", run.client_label, "accuracy", None, (0, 1), run.client_names, run.classes
        ),
        (6.4, 0.28 * max(run.clients, 5) + 1.4),
    )


def label_histogram(run: FinishedRun, request: AnalysisOptions) -> Result:
    """Returns the number of samples of each client and class."""
    split, y = request.split or "train", run.experiment.dataset.y
    counts = [
        np.bincount(np.asarray(y)[run.experiment.data.indices(split, client).numpy()], minlength=len(run.classes))
        for client in range(run.clients)
    ]
    table = np.array(counts, float)
    return Result(
        "Samples by client and class",
        f"Number of {split} samples of each client and class.",
        [run.client_label, *run.classes],
        _table(run, table),
        lambda figure: heatmap(
            figure, table, "class", run.client_label, "samples", None, None, run.client_names, run.classes, digits=0
        ),
        (6.4, 0.28 * max(run.clients, 5) + 1.4),
    )
