"""FedPick: a personal selector splits features into relevant and irrelevant ones, each with its own head."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from bench.yardstick.fedavg import FedAvg


class FedPick(FedAvg):
    """A client; ``uniform`` draws the noise, one logistic variable instead of two Gumbel variables."""

    uniform: Callable[[Tensor], Tensor] = staticmethod(torch.rand_like)

    def __init__(
        self,
        extractor: nn.Module,
        head: nn.Linear,
        width: int,
        tau: float,
        lam_lce: float,
        lam_ent: float,
        lam_dis: float,
    ) -> None:
        super().__init__(extractor, head, width)
        self.selector = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width))
        self.relevant_head, self.irrelevant_head = deepcopy(head), deepcopy(head)
        self.tau, self.lam_lce, self.lam_ent, self.lam_dis = tau, lam_lce, lam_ent, lam_dis

    def forward(self, x: Tensor) -> Tensor:
        z = self.extractor(x)
        mask = (self.selector(z) >= 0).to(z.dtype)
        return self.head(z) + self.relevant_head(z * mask)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.extractor(x)
        u = self.uniform(z)
        soft = torch.sigmoid((self.selector(z) + torch.log(u) - torch.log1p(-u)) / self.tau)
        mask = (soft >= 0.5).to(soft.dtype) + soft - soft.detach()
        y_g, y_p, y_u = self.head(z), self.relevant_head(z * mask), self.irrelevant_head(z * (1 - mask))
        log_g, log_p, log_u = (F.log_softmax(logits, dim=1) for logits in (y_g, y_p, y_u))
        negative_entropy = (log_u.exp() * log_u).sum(dim=1).mean()
        distillation = F.kl_div(log_g, log_p, reduction="batchmean", log_target=True)
        distillation = distillation + F.kl_div(log_p, log_g, reduction="batchmean", log_target=True)
        own = self.lam_lce * F.cross_entropy(y_p, y) + self.lam_ent * negative_entropy
        return F.cross_entropy(y_g, y) + own + self.lam_dis * distillation
