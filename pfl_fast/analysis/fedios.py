"""Analysis of FediOS: geometry of the generic and the personal subspaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from torch import Tensor

from pfl_fast.analysis.figures import COLOURS, plain_axes
from pfl_fast.analysis.result import Result
from pfl_fast.analysis.run import AnalysisError, AnalysisOptions, FinishedRun, outputs


def principal_angles(a: Tensor, b: Tensor) -> NDArray[np.float64]:
    """Returns the principal angles in degrees between the column spaces of ``[d, r]`` matrices, ascending.

    >>> import torch
    >>> principal_angles(torch.eye(3)[:, :1], torch.tensor([[1.0], [1.0], [0.0]])).round(6)
    array([45.])
    """
    return np.sort(np.degrees(subspace_angles(a.double().numpy(), b.double().numpy())))


def energy(f: Tensor, basis: Tensor) -> float:
    """Returns the share ``sum |A^T f|^2 / sum |f|^2`` of features ``[n, d]`` in the span of orthonormal columns A.

    >>> import torch
    >>> round(energy(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0], [0.0]])), 6)
    0.36
    """
    total = float(f.double().square().sum())
    return float((f.double() @ basis.double()).square().sum()) / total if total else float("nan")


def subspaces(run: FinishedRun, options: AnalysisOptions) -> Result:
    """Returns energies of both extractors' features in both subspaces, and the smallest angle between the subspaces."""
    if run.option("projection") != "square" or not run.option("projections"):
        raise AnalysisError("the run has no square projections (projection=square, projections=true)")
    split = options.split or "test"
    rows: list[list[Any]] = []
    bases = [run.client(client).get_submodule("projector") for client in range(run.clients)]
    own = [base.get_buffer("personal") for base in bases]
    for number, name in enumerate(run.client_names):
        client, (x, _) = run.client(number), run.samples(number, split, options.samples)
        generic = bases[number].get_buffer("generic")
        f_g = outputs(client.get_submodule("extractor"), x)
        f_p = outputs(client.get_submodule("personal_extractor"), x) if hasattr(client, "personal_extractor") else f_g
        others = [float(principal_angles(own[number], base)[0]) for i, base in enumerate(own) if i != number]
        angles = [float(principal_angles(generic, own[number])[0]), min(others, default=float("nan"))]
        rows.append([name, *(energy(f, a) for f in (f_g, f_p) for a in (generic, own[number])), *angles])
    width, rank = own[0].shape

    def draw(figure: Any) -> None:
        axes = plain_axes(figure.add_subplot(), run.client_label, "share of the features' energy")
        labels = ("W_g in generic", "W_g in personal", "W_p in generic", "W_p in personal")
        for place, label in enumerate(labels):
            shift = np.arange(run.clients) + 0.2 * (place - 1.5)
            axes.bar(shift, [row[1 + place] for row in rows], 0.2, color=COLOURS[place], label=label)
        axes.axhline(rank / width, color="#555555", linewidth=1, linestyle=":", label="rank / width")
        axes.set_xticks(range(run.clients), run.client_names)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))

    return Result(
        "Geometry of the subspaces",
        f"Share of the energy of the features of both extractors in the generic and the client's subspace, rank {rank} "
        f"of {width}, at most {options.samples} {split} samples; dotted: share of directions. Smallest principal "
        "angles between subspaces; 90 degrees: orthogonal.",
        [run.client_label, "W_g, generic", "W_g, personal", "W_p, generic", "W_p, personal",
         "angle generic-personal (degrees)", "angle to other clients (degrees)"],
        rows,
        draw,
        (7.4, 3.4),
    )  # fmt: skip
