"""FedAFK: a personal extractor is mixed with a shared one by a learned weight, and distils its features."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

from bench.yardstick.fedavg import FedAvg


class FedAFK(FedAvg):
    """A client with its own model and a copy of the shared extractor with a fixed random head."""

    shared = ("global_extractor",)

    def __init__(self, extractor: nn.Module, head: nn.Linear, width: int, lam: float, mu: float) -> None:
        super().__init__(extractor, head, width)
        self.global_extractor, self.random_head = deepcopy(extractor), deepcopy(head)
        self.random_head.requires_grad_(False)
        self.mu = nn.Parameter(torch.tensor(mu))
        self.lam = lam

    def mixture(self) -> dict[str, Tensor]:
        """Returns ``mu theta_i + (1 - mu) theta_G``, with theta_G detached."""
        pairs = zip(self.extractor.named_parameters(), self.global_extractor.parameters(), strict=True)
        return {name: self.mu * own + (1 - self.mu) * other.detach() for (name, own), other in pairs}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the sum of both extractors' losses, which share no trained parameters."""
        f_g = self.global_extractor(x)
        f_i = functional_call(self.extractor, self.mixture(), (x,))
        transfer = F.kl_div(
            F.log_softmax(f_g.detach(), 1), F.log_softmax(f_i, 1), reduction="batchmean", log_target=True
        )
        own = (1 - self.lam) * F.cross_entropy(self.head(f_i), y) + self.lam * transfer
        return F.cross_entropy(self.random_head(f_g), y) + own

    def fit(self, batches: Iterable, lr: float, momentum: float) -> None:
        """Trains both extractors and mu for an epoch, applies the mixture, and trains the head for an epoch."""
        self.train()
        extractors = [*self.extractor.parameters(), *self.global_extractor.parameters()]
        groups = [{"params": extractors, "momentum": momentum}, {"params": [self.mu]}]  # mu: plain gradient steps
        optimizer = torch.optim.SGD(groups, lr=lr)
        self.head.requires_grad_(False)
        for x, y in batches:
            loss = self.loss(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.mu.data.clamp_(0, 1)
        self.head.requires_grad_(True)
        with torch.no_grad():
            for own, mixed in zip(self.extractor.parameters(), self.mixture().values(), strict=True):
                own.copy_(mixed)
        optimizer = torch.optim.SGD(self.head.parameters(), lr=lr, momentum=momentum)
        for x, y in batches:
            with torch.no_grad():
                f_i = self.extractor(x)
            loss = F.cross_entropy(self.head(f_i), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
