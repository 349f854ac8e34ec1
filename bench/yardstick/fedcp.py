"""FedCP: a policy network routes each sample's features to a global and a personal head."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from bench.yardstick.fedavg import FedAvg, overwrite

BANDWIDTHS = (10, 15, 20, 50)


class FedCP(FedAvg):
    """A client with its own extractor and head and frozen global ones."""

    def __init__(self, extractor: nn.Module, head: nn.Linear, width: int, lam: float) -> None:
        super().__init__(extractor, head, width)
        self.global_extractor, self.global_head = deepcopy(extractor), deepcopy(head)
        self.cpn = nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU())
        self.register_buffer("context", torch.zeros(width))
        self.lam = lam

    def trained(self) -> Iterable[nn.Parameter]:
        return [*self.extractor.parameters(), *self.head.parameters(), *self.cpn.parameters()]

    def logits(self, h: Tensor) -> Tensor:
        policy = F.softmax(self.cpn(self.context * h).reshape(len(h), 2, -1), dim=1)
        r, s = policy[:, 0], policy[:, 1]
        return self.global_head(r * h) + self.head(s * h)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.extractor(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.extractor(x)
        with torch.no_grad():
            h0 = self.global_extractor(x)
        return F.cross_entropy(self.logits(h), y) + self.lam * mmd(h, h0)

    def upload(self) -> list[Tensor]:
        """Returns extractor, policy network and the mean of both heads."""
        heads = zip(self.global_head.parameters(), self.head.parameters(), strict=True)
        own = [p.data for p in (*self.extractor.parameters(), *self.cpn.parameters())]
        return [*own, *((a.data + b.data) / 2 for a, b in heads)]

    def receive(self, averages: list[Tensor]) -> None:
        extractor = averages[: len(list(self.extractor.parameters()))]
        received = [self.extractor, self.cpn, self.global_head]
        overwrite((p for module in received for p in module.parameters()), averages)
        overwrite(self.global_extractor.parameters(), extractor)
        v = self.head.weight.data.sum(dim=0)
        self.context = v / v.norm()


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """Returns the mean over pairs of ``k(x, x) + k(y, y) - 2 k(x, y)``, as the authors' code computes it."""
    xx, yy, xy = x @ x.t(), y @ y.t(), x @ y.t()
    rx = xx.diag().unsqueeze(0).expand_as(xx)
    ry = yy.diag().unsqueeze(0).expand_as(yy)
    dxx, dyy, dxy = rx.t() + rx - 2 * xx, ry.t() + ry - 2 * yy, rx.t() + ry - 2 * xy
    k_xx, k_yy, k_xy = torch.zeros_like(xx), torch.zeros_like(xx), torch.zeros_like(xx)
    for width in BANDWIDTHS:
        k_xx = k_xx + torch.exp(-0.5 * dxx / width)
        k_yy = k_yy + torch.exp(-0.5 * dyy / width)
        k_xy = k_xy + torch.exp(-0.5 * dxy / width)
    return torch.mean(k_xx + k_yy - 2 * k_xy)
