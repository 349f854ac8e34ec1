"""FedDyn: a regulariser that each client and the server keep correcting, until local optima and the global one agree.

    L_i(w) = CE(w) - <h_i, w> + alpha / 2 |w - w_g|^2         then h_i <- h_i - alpha (w_i - w_g)
    h <- h - (alpha / N) sum_S (w_i - w_g)                    w_g <- mean_S w_i - h / alpha

Both terms act inside the step and are not part of the loss that is reported.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_fast.methods.base import (
    Part,
    Phase,
    PhaseProgress,
    Tensors,
    averaged,
    client_buffer,
    part_of,
    round_buffer,
    zeros_like_parameters,
)
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedDynOptions:
    """Options of FedDyn."""

    alpha: float = option(
        0.01, "strength of the regulariser; 0.1 for ResNet-18, as FediOS's paper has it", minimum=1e-9
    )
    compat: str = option(
        "paper", "pfllib: the pull is that of the norm, not of its square, as PFLlib has it", ["paper", "pfllib"]
    )


class FedDyn(FedAvg):
    """Everything is shared; each client keeps h_i, the server h."""

    title = "FedDyn"
    paper = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    summary = "one model for all; a regulariser that clients and server keep correcting"
    reading = "alpha is the same for all clients, gradients are not clipped; statistics of BatchNorm are plain means"
    public_code = (
        "the authors': alpha is divided by the client's relative size, gradients are clipped at 10. PFLlib: the norm "
        "is not squared (compat=pfllib), and lost clients shrink the model"
    )
    Options = FedDynOptions

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Alpha by backbone."""
        return {**super().defaults(model, dataset), "alpha": 0.1 if model == "resnet18" else 0.01}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """FedAvg's; w_g; h_i."""
        zeros = zeros_like_parameters({"extractor": backbone.extractor, "head": backbone.head}, self.context.batch_norm)
        return {**super().parts(backbone), "start": round_buffer(zeros), "correction": client_buffer(zeros)}

    def phases(self, round: int) -> list[Phase]:
        """One phase, corrected by h_i and pulled to w_g."""
        squared = self.options.compat == "paper"
        proximal = {part: (f"start.{part}", self.options.alpha) for part in ("extractor", "head")} if squared else {}
        train = ("extractor", "head")
        return [
            Phase(
                train,
                self.loss,
                self.context.local_epochs,
                proximal=proximal,
                edit_gradients=self.correct,
                after=self.renew,
            )
        ]

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """``w_g``."""
        return {f"start.{name}": client[name] for name in self.context.exchanged_parameters} if at == "start" else {}

    def correct(self, client: Tensors, gradients: Tensors) -> Tensors:
        """``g - h_i``; and the pull, if it is not that of the step."""
        h = part_of(client, "correction")
        found = {name: g - h[name] if name in h else g for name, g in gradients.items()}
        if self.options.compat == "pfllib":
            away = {name: client[name] - client[f"start.{name}"] for name in h if name in found}
            norm = torch.stack([d.square().sum() for d in away.values()]).sum().sqrt()
            scale = torch.where(norm > 0, self.options.alpha / 2 / norm, 0)
            found.update({name: found[name] + scale * d for name, d in away.items()})
        return found

    def renew(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """``h_i <- h_i - alpha (w_i - w_g)``."""
        moved = {name: client[name] - client[f"start.{name}"] for name in self.context.exchanged_parameters}
        return {f"correction.{n}": client[f"correction.{n}"] - self.options.alpha * d for n, d in moved.items()}

    def server_state(self, server: Tensors) -> Tensors:
        """h."""
        return {f"correction.{name}": torch.zeros_like(server[name]) for name in self.context.exchanged_parameters}

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """h by all N clients, w_g by the mean of those that were there."""
        result = averaged(uploads, torch.full_like(sizes, 1 / len(sizes)))
        alpha, share = self.options.alpha, len(sizes) / self.context.clients
        for name in self.context.exchanged_parameters:
            h = server[f"correction.{name}"] - alpha * share * (result[name] - server[name])
            result[f"correction.{name}"], result[name] = h, result[name] - h / alpha
        return result
