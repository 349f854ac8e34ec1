"""Similarity of the clients' models: of their features, and of their updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from pfl_fast.analysis.figures import heatmap
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun, outputs, shared_parameters
from pfl_fast.methods.base import Client, Tensors

EXTRACTORS = ("extractor", "local.extractor", "personal_extractor")  # of the clients' own predictions


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Returns the linear CKA ``|Yc^T Xc|^2 / (|Xc^T Xc| |Yc^T Yc|)`` of features ``[n, d]`` of the same samples.

    Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019, Eq. 5; Frobenius norms, and
    columns centred. 1 for equal features up to a rotation and a scale.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]])
    >>> round(linear_cka(x, 3 * x.flip(1)), 6)
    1.0
    """
    x, y = ((f.double() - f.double().mean(0)) for f in (x, y))
    norms = torch.linalg.matrix_norm(x.T @ x) * torch.linalg.matrix_norm(y.T @ y)
    return float((y.T @ x).square().sum() / norms) if norms else float("nan")


def cka(run: FinishedRun, request: AnalysisOptions) -> Result:
    """Returns the CKA between the extractors of all pairs of clients, on samples of all clients.

    Clients are compared after local training in the last snapshot, if there is one; otherwise at the end of the run,
    where clients that share the extractor have the same.
    """
    split, each = request.split or "test", max(10, request.samples // run.clients)
    x = torch.cat([run.samples(client, split, each)[0] for client in range(run.clients)])
    names, models, when = after_local_training(run)
    features = [outputs(extractor_of(model), x) for model in models]
    table = np.array([[linear_cka(own, other) for other in features] for own in features])
    return _map(run, names, table, "Similarity of the clients' features", "linear CKA",
                f"Linear CKA between the features of the clients' extractors {when}, on {len(x)} {split} samples of "
                "all clients; 1: equal up to rotation and scale.")  # fmt: skip


def cosine(run: FinishedRun, request: AnalysisOptions) -> Result:  # noqa: ARG001
    """Returns the cosine between the updates of all pairs of clients: parameters after minus before local training."""
    snapshot = run.snapshots()[-1]
    shared = shared_parameters(run)
    if not shared:
        raise AnalysisError("no parameter is both received and uploaded in this run, so clients have no common start")
    rows, layers = [], dict.fromkeys(name.rsplit(".", 1)[0] for name in shared)
    if len(snapshot.clients) < 2:
        raise AnalysisError("needs a round that at least two clients trained in")
    updates = [difference(snapshot.before(c), snapshot.after_local(c), shared) for c in snapshot.clients]
    names = [run.client_names[client] for client in snapshot.clients]

    def matrix(chosen: Sequence[str]) -> NDArray[np.float64]:
        vectors = [torch.cat([update[name].flatten() for name in chosen]).numpy() for update in updates]
        return np.asarray(cosine_similarity(np.stack(vectors)))

    off = ~np.eye(len(names), dtype=bool)
    for layer in layers:
        values = matrix([name for name in shared if name.rsplit(".", 1)[0] == layer])[off]
        rows.append([f"mean of pairs, {layer}", values.mean(), *[None] * (len(names) - 1)])
    table = matrix(shared)
    result = _map(run, names, table, "Similarity of the clients' updates", "cosine",
                  f"Cosine between the updates of the shared parameters in round {snapshot.round}: after minus "
                  "before local training. Last rows of the table: mean over pairs of clients by layer.")  # fmt: skip
    return Result(result.title, result.caption, result.columns, [*result.rows, *rows], result.draw, result.size)


def difference(before: Tensors, after: Tensors, names: Sequence[str]) -> Tensors:
    """Returns ``after - before`` of the named tensors."""
    return {name: (after[name] - before[name]).float() for name in names}


def after_local_training(run: FinishedRun) -> tuple[list[str], list[Client], str]:
    """Returns names and models of clients after local training in the last snapshot, or at the end of the run."""
    try:
        snapshot = run.snapshots()[-1]
    except AnalysisError:
        models = [run.client(client) for client in range(run.clients)]
        return run.client_names, models, "at the end of the run (without snapshots, shared parts are equal)"
    models = [run.module(snapshot.after_local(client)) for client in snapshot.clients]
    names = [run.client_names[client] for client in snapshot.clients]
    return names, models, f"after local training in round {snapshot.round}"


def extractor_of(client: Client) -> torch.nn.Module:
    """Returns the extractor with which a client predicts."""
    for name in EXTRACTORS:
        try:
            return client.get_submodule(name)
        except AttributeError:
            continue
    raise AnalysisError("the method's clients have no part named extractor")


def _map(
    run: FinishedRun, names: Sequence[str], table: NDArray[np.float64], title: str, unit: str, caption: str
) -> Result:
    off = table[~np.eye(len(table), dtype=bool)]
    low = min(0.0, float(np.nanmin(off))) if off.size else 0.0
    size = (0.35 * len(names) + 2.4, 0.3 * len(names) + 1.6)

    def draw(figure: Any) -> None:
        heatmap(figure, table, run.client_label, run.client_label, unit, None, (low, 1), names, names)

    return Result(title, caption, [run.client_label, *names], [[n, *r] for n, r in zip(names, table, strict=True)],
                  draw, (max(size[0], 4.2), max(size[1], 3.2)))  # fmt: skip
