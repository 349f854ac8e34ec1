"""FedAMP: every client has a model of its own, drawn to a mixture of the others in which similar ones weigh more.

    xi_ij = alpha_k / sigma exp(-|w_i - w_j|^2 / sigma),  i != j
    u_i = sum_{j != i} xi_ij w_j + (1 - sum_{j != i} xi_ij) w_i          at the server
    min over w of CE(w) + lam / (2 alpha_k) |w - u_i|^2                  at the client, from its own w_i

The pull to u_i acts inside the step and is not part of the loss that is reported.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast.methods.base import OWN, Method, MixtureInputs, Part, Phase, Tensors, parameters_as_buffers
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedAMPOptions:
    """Options of FedAMP."""

    lam: float = option(1.0, "the client is pulled to its mixture by lam / alpha_k", minimum=0)
    alpha_k: float = option(1.0, "the server's step: how much others weigh", minimum=1e-9)
    sigma: float | None = option(
        None,
        "how fast the weight of others falls with their squared distance; none: the mean squared distance of the round",
        minimum=1e-9,
    )


class FedAMP(Method):
    """Models are personal; each client has a cloud model, which is not trained."""

    title = "FedAMP"
    paper = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021"
    summary = "personal models, each drawn to a mixture of the others in which similar ones weigh more"
    family = OWN
    reading = (
        "lam and alpha_k 1: with PFLlib's script values (alpha_k 1000, sigma 0.1) the pull is too weak to be noticed; "
        "sigma follows the models, as distances depend on their size; rows of xi that exceed 1 are scaled to 1"
    )
    public_code = "PFLlib: the pull is built without a gradient, so that the method is Local"
    Options = FedAMPOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """w_i, and u_i."""
        batch_norm = self.context.batch_norm
        return {
            "extractor": Part(deepcopy(backbone.extractor), upload_to="model_extractor"),
            "head": Part(deepcopy(backbone.head), upload_to="model_head"),
            "cloud_extractor": Part(
                parameters_as_buffers(backbone.extractor, batch_norm), trained=False, mixture_of="model_extractor"
            ),
            "cloud_head": Part(
                parameters_as_buffers(backbone.head, batch_norm), trained=False, mixture_of="model_head"
            ),
        }

    def phases(self, round: int) -> list[Phase]:
        """One phase, pulled to the cloud model."""
        strength = self.options.lam / self.options.alpha_k
        proximal = {part: (f"cloud_{part}", strength) for part in ("extractor", "head")}
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, proximal=proximal)]

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Nothing is averaged."""
        return {}

    def mixture(self, inputs: MixtureInputs) -> tuple[Tensor, Tensors]:
        """``u_i``; where the others would weigh more than 1 together, they are scaled to 1."""
        names = [f"model_{name}" for name in self.context.parameters]
        models = [inputs.uploads[name].flatten(1) for name in names if name in inputs.uploads]
        squared = torch.stack([squared_distances(model.double()) for model in models]).sum(0)
        others = len(squared) * (len(squared) - 1)
        mean = float(squared.sum()) / others if others else 1.0
        sigma = self.options.sigma or mean or 1.0  # models that are all alike: any value does
        xi = (self.options.alpha_k / sigma * torch.exp(-squared / sigma)).fill_diagonal_(0)
        xi = xi / xi.sum(dim=1, keepdim=True).clamp(min=1)
        return xi + torch.diag(1 - xi.sum(dim=1)), {}


def squared_distances(rows: Tensor) -> Tensor:
    """``[S, S]``: between all pairs of rows, by one product; of differences from the first, as models are alike."""
    away = rows - rows[0]
    products = away @ away.T
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).clamp(min=0)
