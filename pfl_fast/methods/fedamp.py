"""FedAMP: personal models with a proximal term towards a mixture of all models; similar models weigh more.

    xi_ij = alpha_k / sigma exp(-|w_i - w_j|^2 / sigma),  i != j
    u_i = sum_{j != i} xi_ij w_j + (1 - sum_{j != i} xi_ij) w_i          at the server
    min over w of CE(w) + lam / (2 alpha_k) |w - u_i|^2                  at the client, from its own w_i

The proximal term is added to the gradient and is not part of the reported loss.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast.methods.base import ONE_PER_CLIENT, Method, MixtureInputs
from pfl_fast.methods.parts import Part, Tensors, parameters_as_buffers
from pfl_fast.methods.phases import Phase
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedAMPOptions:
    """Options of FedAMP."""

    lam: float = option(1.0, "weight of the proximal term, divided by alpha_k", minimum=0)
    alpha_k: float = option(1.0, "server step size: scale of the weights of other clients", minimum=1e-9)
    sigma: float | None = option(
        None,
        "scale of the squared distances in the weights; none: the mean squared distance of the round",
        minimum=1e-9,
    )


class FedAMP(Method):
    """Personal models, and an untrained cloud model per client."""

    title = "FedAMP"
    paper = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021"
    summary = "personal models with a proximal term towards a mixture of all models; similar models weigh more"
    family = ONE_PER_CLIENT
    reading = (
        "lam and alpha_k 1: with the values of PFLlib's scripts (alpha_k 1000, sigma 0.1) the proximal term has no "
        "visible effect; sigma is the mean squared distance, which depends on the model's size; rows of xi with a sum "
        "above 1 are scaled to 1"
    )
    public_code = "PFLlib: the proximal term has no gradient, so the method is Local"
    Options = FedAMPOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns w_i and u_i."""
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
        """Returns one phase with a proximal term towards the cloud model."""
        strength = self.options.lam / self.options.alpha_k
        proximal = {part: (f"cloud_{part}", strength) for part in ("extractor", "head")}
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, proximal=proximal)]

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Returns nothing: the models are mixed, not averaged."""
        return {}

    def mixture(self, inputs: MixtureInputs) -> tuple[Tensor, Tensors]:
        """Returns the weights of ``u_i``; weights of other clients with a sum above 1 are scaled to 1."""
        names = [f"model_{name}" for name in self.context.parameters]
        models = [inputs.uploads[name].flatten(1) for name in names if name in inputs.uploads]
        squared = torch.stack([squared_distances(model.double()) for model in models]).sum(0)
        others = len(squared) * (len(squared) - 1)
        mean = float(squared.sum()) / others if others else 1.0
        sigma = self.options.sigma or mean or 1.0  # equal models: any value gives the same mixture
        xi = (self.options.alpha_k / sigma * torch.exp(-squared / sigma)).fill_diagonal_(0)
        xi = xi / xi.sum(dim=1, keepdim=True).clamp(min=1)
        return xi + torch.diag(1 - xi.sum(dim=1)), {}


def squared_distances(rows: Tensor) -> Tensor:
    """Returns ``[S, S]`` squared distances of all pairs of rows, by one matrix product.

    Row 0 is subtracted first: models differ little from each other, and the product would cancel digits.
    """
    away = rows - rows[0]
    products = away @ away.T
    norms = products.diagonal()
    return (norms[:, None] + norms - 2 * products).clamp(min=0)
