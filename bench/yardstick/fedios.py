"""FediOS: a shared and a personal extractor, projected onto orthogonal subspaces, with one shared head."""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from bench.yardstick.fedavg import FedAvg


class FediOS(FedAvg):
    """A client; ``generic`` and ``personal`` ``[d, r]`` are bases of the subspaces."""

    def __init__(self, extractor: nn.Module, head: nn.Linear, width: int, rank: int, alpha: float, lam: float) -> None:
        super().__init__(extractor, head, width)
        self.personal_extractor = deepcopy(extractor)
        self.register_buffer("generic", torch.zeros(width, rank))
        self.register_buffer("personal", torch.zeros(width, rank))
        self.alpha, self.lam = alpha, lam

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns generic and personal features and their weighted sum."""
        p_g = self.extractor(x) @ self.generic @ self.generic.t()
        p_p = self.personal_extractor(x) @ self.personal @ self.personal.t()
        return p_g, p_p, self.alpha * p_g + (1 - self.alpha) * p_p

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.projected(x)[2])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        p_g, p_p, p_f = self.projected(x)
        loss = (
            F.cross_entropy(self.head(p_f), y) + F.cross_entropy(self.head(p_g), y) + F.cross_entropy(self.head(p_p), y)
        )
        return loss + self.lam * (p_g * p_p).sum(dim=1).abs().mean()
