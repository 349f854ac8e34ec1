"""Analyses of FedCP: personal information ratio, distribution of s, effect of local learning (Fig. 5, 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_fast.analysis.figures import COLOURS, lines, plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun, outputs, predictions
from pfl_fast.methods.base import Batch, Client
from pfl_fast.methods.fedcp import FedCP


def personal_shares(method: FedCP, client: Client, x: Tensor) -> Tensor:
    """Returns s ``[n, K]``, the share of each feature that a client's policy network sends to the personal head."""

    def shares(part: Tensor) -> Tensor:
        h = client.get_submodule("extractor")(part)
        policy: Any = client.get_submodule("cpn")
        scores = policy.scores(h, method.policy_input(h, client.get_buffer("context.vector")))
        s: Tensor = policy.route(torch.ones_like(h), scores, None)[1]
        return s

    return outputs(shares, x)


def _fedcp(run: FinishedRun) -> FedCP:
    if not isinstance(run.method, FedCP) or not run.option("cpn"):
        raise AnalysisError("the run has no policy network (cpn=false)")
    return run.method


def pir(run: FinishedRun, options: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns the personal information ratio (PIR) of each client by round (Fig. 5a)."""
    _fedcp(run)
    rounds, values = run.recorded("pir")
    curves = {name: (rounds, values[:, client]) for client, name in enumerate(run.client_names)}
    return Result(
        "Personal information ratio (PIR)",
        "Mean of s over the training samples of a client and over features, recorded during local training of the "
        "evaluated rounds (FedCP, Fig. 5a).",
        ["round", *(f"client {name}" for name in run.client_names)],
        [[number, *row] for number, row in zip(rounds, values, strict=True)],
        lambda figure: lines(figure, curves, "communication round", "PIR", run.client_label),
        (6.0, max(3.4, 0.2 * run.clients)),
    )


def shares(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns the distribution over samples of the mean of s, for each client (Fig. 5b)."""
    method, split, means = _fedcp(run), options.split or "test", []
    for number in range(run.clients):
        x, _ = run.samples(number, split, options.samples)
        means.append(personal_shares(method, run.client(number), x).mean(1).numpy())

    def draw(figure: Any) -> None:
        axes = plain_axes(figure.add_subplot(), run.client_label, "mean of s over features")
        places = range(run.clients)
        bodies: Any = axes.violinplot(means, list(places), widths=0.8, showmeans=True)
        for body in bodies["bodies"]:
            body.set(facecolor=COLOURS[0], alpha=0.4)
        for line in ("cmeans", "cmins", "cmaxes", "cbars"):
            bodies[line].set(color=COLOURS[0], linewidth=1)
        axes.set_xticks(list(places), run.client_names)

    return Result(
        "Distribution of s",
        f"Share s of the features' information that goes to the personal head, mean over features, of at most "
        f"{options.samples} {split} samples of each client: density, minimum, mean, maximum (FedCP, Fig. 5b).",
        [run.client_label, "samples", "minimum", "mean", "maximum", "standard deviation"],
        [[name, len(m), m.min(), m.mean(), m.max(), m.std()] for name, m in zip(run.client_names, means, strict=True)],
        draw,
    )


def objective(run: FinishedRun, client: Client, x: Tensor, y: Tensor, round: int) -> float:
    """Returns the loss of local training on samples in order, mean over batches of the run's batch size by samples."""
    phase, total = run.method.phases(round)[0], 0.0
    size = run.experiment.data.batch_size
    with torch.no_grad():
        for part, labels in zip(x.split(size), y.split(size), strict=True):
            cached = {name: cache.compute(client, part) for name, cache in phase.cached.items()}
            total += float(phase.loss(client, Batch(part, labels, torch.tensor(0), cached))[0]) * len(part)
    return total / len(x)


def local_learning(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns loss and accuracy on training data before and after local learning, by round (Fig. 6)."""
    split, rows = options.split or "train", []
    samples = [run.samples(client, split, options.samples) for client in range(run.clients)]
    for snapshot in run.snapshots():
        sizes = run.experiment.data.train_sizes[snapshot.clients].astype(float)
        row: list[float] = []
        for tensors in (snapshot.before, snapshot.after_local):
            values = []
            for client in snapshot.clients:
                module, (x, y) = run.module(tensors(client)), samples[client]
                correct = (predictions(run.method, module, x).argmax(1) == y).double().mean().item()
                values.append((objective(run, module, x, y, snapshot.round), correct))
            row += weighted(values, sizes)
        rows.append([snapshot.round, row[0], row[2], row[1], row[3]])

    def draw(figure: Any) -> None:
        table = np.array(rows)
        for axes, first, label in zip(figure.subplots(1, 2), (1, 3), ("loss", "accuracy"), strict=True):
            plain_axes(axes, "communication round", f"{label} on {split} samples")
            for column, when, style in ((first, "before local learning", "o-"), (first + 1, "after", "s--")):
                axes.plot(table[:, 0], table[:, column], style, color=COLOURS[column - first], markersize=4, label=when)
        axes.legend(frameon=False, fontsize=8)

    return Result(
        "Loss and accuracy before and after local learning",
        f"Loss of local training (for FedCP CE + lam MMD) and accuracy on at most {options.samples} {split} samples of "
        "each client, weighted by numbers of training samples; models before and after local training (FedCP, Fig. 6).",
        ["round", "loss before", "loss after", "accuracy before", "accuracy after"],
        rows,
        draw,
        (7.2, 3.2),
    )


def weighted(values: Sequence[tuple[float, ...]], sizes: NDArray[np.float64]) -> list[float]:
    """Returns the means of the columns of ``values``, weighted by ``sizes``.

    >>> weighted([(1.0, 0.0), (2.0, 1.0)], np.array([3.0, 1.0]))
    [1.25, 0.25]
    """
    found: list[float] = np.average(np.array(values), axis=0, weights=sizes).tolist()
    return found
