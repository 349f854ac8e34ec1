"""Analyses of FedPick: sparsity, Fisher scores, probes, selected features (Fig. 1-3 and 7-10 of its paper)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from torch import Tensor

from pfl_fast.analysis import features as measures
from pfl_fast.analysis.figures import COLOURS, MARKERS, bars, heatmap, lines, plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun, outputs
from pfl_fast.analysis.similarity import extractor_of
from pfl_fast.methods.base import Client

WHEN = ("before aggregation", "after aggregation")


def selected(client: Client, z: Tensor) -> Tensor:
    """Returns the mask ``[n, d]`` of the features that a client's selector finds relevant, without noise."""
    selector = client.get_submodule("selector")
    with torch.no_grad():
        mask: Tensor = selector.selects(selector.logits(z))  # type: ignore[operator]
    return mask


def _masks(run: FinishedRun, options: AnalysisOptions) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns features ``[n, d]``, masks ``[n, d]`` and labels ``[n]`` of each client."""
    if not run.option("pfsm"):
        raise AnalysisError("the run has no selector (pfsm=false)")
    found = []
    for number in range(run.clients):
        client, (x, y) = run.client(number), run.samples(number, options.split or "test", options.samples)
        z = outputs(extractor_of(client), x)
        found.append((z, selected(client, z), y))
    return found


def sparsity(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns the sparsity ratio of the features by round, before and after aggregation (Eq. 3-4, Fig. 2)."""
    split, rows = options.split or "test", []
    curves: dict[str, tuple[list[int], list[float]]] = {when: ([], []) for when in WHEN}
    samples = [run.samples(client, split, options.samples)[0] for client in range(run.clients)]
    for snapshot in run.snapshots():
        states = (snapshot.after_local, snapshot.after_aggregation)
        means = []
        for when, tensors in zip(WHEN, states, strict=True):
            ratios = [
                measures.sparsity_ratio(outputs(extractor_of(run.module(tensors(c))), samples[c]))
                for c in snapshot.clients
            ]
            means.append(ratios)
            curves[when][0].append(snapshot.round)
            curves[when][1].append(float(np.mean(ratios)))
        rows += [
            [snapshot.round, run.client_names[c], *pair]
            for c, *pair in zip(snapshot.clients, *means, strict=True)
        ]  # fmt: skip
    return Result(
        "Sparsity ratio of the features",
        f"Share of the entries of z / |z| that are at most {measures.EPS:g}, mean over at most {options.samples} "
        f"{split} samples of a client, then over clients; encoder at the end of local training and after it has "
        "received the average (FedPick, Eq. 3-4, Fig. 2).",
        ["round", run.client_label, *(f"sparsity ratio {when}" for when in WHEN)],
        rows,
        lambda figure: lines(figure, curves, "communication round", "sparsity ratio"),
    )


def fisher(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns the mean Fisher score of all, relevant and irrelevant features of each client (Eq. 5-7, Fig. 9)."""
    groups: dict[str, list[float]] = {"all features": [], "relevant": [], "irrelevant": []}
    for z, mask, y in _masks(run, options):
        for name, part in zip(groups, (z, z * mask, z * ~mask), strict=True):
            groups[name].append(float(measures.fisher_score(part, y).mean()))
    return Result(
        "Fisher score of relevant and irrelevant features",
        f"Fisher score of z_g, z_p and z_u, mean over features, {options.split or 'test'} samples (at most "
        f"{options.samples} of a client; FedPick, Eq. 5-7, Fig. 9).",
        [run.client_label, *groups],
        [[name, *values] for name, *values in zip(run.client_names, *groups.values(), strict=True)],
        lambda figure: bars(figure, run.client_names, groups, run.client_label, "Fisher score, mean over features"),
    )


def probe(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns the accuracy of 10 nearest neighbours on the best 10 to 100 % of the features (Fig. 1, 3)."""
    rows, curves = [], {}
    for number, name in enumerate(run.client_names):
        extractor = extractor_of(run.client(number))
        (x, y), (x_test, y_test) = (run.samples(number, split, options.samples) for split in ("train", "test"))
        z, z_test = outputs(extractor, x), outputs(extractor, x_test)
        scores = None if options.split != "test" else measures.fisher_score(z_test, y_test)
        accuracies = measures.knn_probe((z, y), (z_test, y_test), scores=scores)
        rows.append([name, *accuracies])
        curves[name] = ([100 * ratio for ratio in measures.RATIOS], accuracies)
    return Result(
        "Nearest-neighbour probe on the best features",
        f"Test accuracy of 10 nearest neighbours, fitted to training features of the client's encoder, on the "
        f"features of the highest Fisher score on {options.split or 'train'} samples (at most {options.samples} "
        "samples of a client and split; FedPick, Fig. 1 and 3).",
        [run.client_label, *(f"{round(100 * ratio)} %" for ratio in measures.RATIOS)],
        rows,
        lambda figure: lines(figure, curves, "features kept (%)", "test accuracy", run.client_label),
    )


def selection(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns the share of relevant features of each client, and over the rounds in training (Fig. 7)."""
    ratios = [float(mask.double().mean()) for _, mask, _ in _masks(run, options)]
    rounds, recorded = run.recorded("selection_ratio")

    def draw(figure: Any) -> None:
        left, right = figure.subfigures(1, 2)
        bars(left, run.client_names, {"selection ratio": ratios}, run.client_label, "share of relevant features")
        curves = {name: (rounds, recorded[:, client]) for client, name in enumerate(run.client_names)}
        lines(right, curves, "communication round", "the same in local training")

    return Result(
        "Selection ratio",
        f"Share of the features that a client's selector finds relevant, mean over at most {options.samples} "
        f"{options.split or 'test'} samples (left), and over training samples of a round (right; FedPick, Fig. 7).",
        [run.client_label, "selection ratio", *(f"training, round {number}" for number in rounds)],
        [[name, ratio, *own] for name, ratio, own in zip(run.client_names, ratios, recorded.T, strict=True)],
        draw,
        (8.6, 3.2),
    )


def important_overlap(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns the overlap of the half of the features that each pair of clients selects most often (Fig. 10)."""
    table = measures.overlap([measures.important_features(mask) for _, mask, _ in _masks(run, options)])
    names = run.client_names
    return Result(
        "Overlap of important features",
        f"|A and B| / |A or B| of the half of the features that each client selects most often on at most "
        f"{options.samples} {options.split or 'test'} samples (FedPick, Fig. 10); two random halves: 0.33.",
        [run.client_label, *names],
        [[name, *row] for name, row in zip(names, table, strict=True)],
        lambda figure: heatmap(
            figure, table, run.client_label, run.client_label, "overlap", None, (0, 1), names, names
        ),
        (max(4.6, 0.35 * len(names) + 2.4), max(3.6, 0.3 * len(names) + 1.8)),
    )


def tsne(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns two-dimensional t-SNE of relevant and irrelevant features of one client, by class (Fig. 8)."""
    run.check_client(options.client)
    z, mask, y = _masks(run, options)[options.client]
    points = [embedding(part.numpy(), options.seed) for part in (z * mask, z * ~mask)]
    names = [run.classes[label] for label in y.tolist()]

    def draw(figure: Any) -> None:
        for axes, place, title in zip(
            figure.subplots(1, 2), points, ("relevant features", "irrelevant features"), strict=True
        ):
            plain_axes(axes, "t-SNE 1", "t-SNE 2", title)
            for label in y.unique().tolist():
                own = place[y.numpy() == label]
                colour, marker = COLOURS[label % len(COLOURS)], MARKERS[label % len(MARKERS)]
                axes.scatter(*own.T, s=9, color=colour, marker=marker, label=run.classes[label], rasterized=True)
            axes.set(xticks=[], yticks=[])
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), title="class")

    return Result(
        "t-SNE of relevant and irrelevant features",
        f"t-SNE of z_p and z_u of {len(y)} {options.split or 'test'} samples of client "
        f"{run.client_names[options.client]}, seed {options.seed} (FedPick, Fig. 8).",
        ["class", "relevant, 1", "relevant, 2", "irrelevant, 1", "irrelevant, 2"],
        [[name, *row] for name, row in zip(names, np.hstack(points), strict=True)],
        draw,
        (7.6, 3.2),
    )


def embedding(z: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """Returns the t-SNE ``[n, 2]`` of features ``[n, d]``, with scikit-learn."""
    perplexity = min(30, (len(z) - 1) / 3)
    return np.asarray(TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(z), float)
