"""FedDyn: a dynamic regulariser aligns the optima of the clients with the global optimum.

    L_i(w) = CE(w) - <h_i, w> + alpha / 2 |w - w_g|^2         then h_i <- h_i - alpha (w_i - w_g)
    h <- h - (alpha / N) sum_S (w_i - w_g)                    w_g <- mean_S w_i - h / alpha

Both terms of the regulariser are added to the gradient and are not part of the reported loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_fast.methods.base import Method, averaged
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.parts import Part, Tensors, client_buffer, part_of, round_buffer, zeros_like_parameters
from pfl_fast.methods.phases import Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedDynOptions:
    """Options of FedDyn."""

    alpha: float = option(0.01, "weight of the regulariser; 0.1 for ResNet-18, as in FediOS's paper", minimum=1e-9)
    compat: str = option(
        "paper", "pfllib: regularise by the norm, not by its square, as PFLlib does", ["paper", "pfllib"]
    )


class FedDyn(FedAvg):
    """Shared extractor and head; each client keeps h_i, the server h."""

    title = "FedDyn"
    paper = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    summary = "one model for all; a regulariser that clients and server update in every round"
    reading = "alpha is the same for all clients; gradients are not clipped; BatchNorm's statistics are plain averages"
    public_code = (
        "the authors': alpha is divided by the client's relative number of samples, gradients are clipped at 10. "
        "PFLlib: the norm is not squared (compat=pfllib), and lost clients shrink the model"
    )
    Options = FedDynOptions
    on_receive = Method.keep_start

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns alpha of the backbone."""
        return {**super().defaults(model, dataset), "alpha": 0.1 if model == "resnet18" else 0.01}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts, w_g and h_i."""
        zeros = zeros_like_parameters(backbone, self.context.batch_norm)
        return {**super().parts(backbone), "start": round_buffer(zeros), "correction": client_buffer(zeros)}

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase whose gradients include the regulariser."""
        squared = self.options.compat == "paper"
        proximal = {part: (f"start.{part}", self.options.alpha) for part in ("extractor", "head")} if squared else {}
        train = ("extractor", "head")
        return [
            Phase(
                train,
                self.loss,
                self.context.local_epochs,
                proximal=proximal,
                edit_gradients=self.add_regulariser,
                after=self.update_correction,
            )
        ]

    def add_regulariser(self, client: Tensors, gradients: Tensors) -> Tensors:
        """Returns ``g - h_i``; with ``compat=pfllib`` plus the gradient of ``alpha / 2 |w - w_g|``."""
        h = part_of(client, "correction")
        edited = {name: g - h[name] if name in h else g for name, g in gradients.items()}
        if self.options.compat == "pfllib":
            difference = {name: client[name] - client[f"start.{name}"] for name in h if name in edited}
            norm = torch.stack([d.square().sum() for d in difference.values()]).sum().sqrt()
            scale = torch.where(norm > 0, self.options.alpha / 2 / norm, 0)
            edited.update({name: edited[name] + scale * d for name, d in difference.items()})
        return edited

    def update_correction(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """Returns ``h_i - alpha (w_i - w_g)`` as the new h_i."""
        difference = {name: client[name] - client[f"start.{name}"] for name in self.context.exchanged_parameters}
        return {f"correction.{n}": client[f"correction.{n}"] - self.options.alpha * d for n, d in difference.items()}

    def server_state(self, server: Tensors) -> Tensors:
        """Returns h."""
        return {f"correction.{name}": torch.zeros_like(server[name]) for name in self.context.exchanged_parameters}

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Returns h, updated by the share of the N clients that uploaded, and w_g."""
        result = averaged(uploads, torch.full_like(sizes, 1 / len(sizes)))
        alpha, share = self.options.alpha, len(sizes) / self.context.clients
        for name in self.context.exchanged_parameters:
            h = server[f"correction.{name}"] - alpha * share * (result[name] - server[name])
            result[f"correction.{name}"], result[name] = h, result[name] - h / alpha
        return result
