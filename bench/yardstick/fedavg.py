"""FedAvg and FedPer, and what every client is here: its own copy of the model, which it trains and tests."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class FedAvg(nn.Module):
    """One client; everything is shared.

    Args:
        extractor: ``[b, ...] -> [b, K]``, copied.
        head: ``[b, K] -> [b, C]``, copied.
        width: K.
    """

    shared: ClassVar[tuple[str, ...]] = ("extractor", "head")

    def __init__(self, extractor: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.extractor, self.head, self.width = deepcopy(extractor), deepcopy(head), width

    def forward(self, x: Tensor) -> Tensor:
        """``[b, C]`` logits, as the client predicts."""
        return self.head(self.extractor(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    def trained(self) -> Iterable[nn.Parameter]:
        return self.parameters()

    def fit(self, batches: Iterable, lr: float, momentum: float) -> None:
        """One epoch; ``batches`` begins anew each time it is iterated over."""
        self.train()
        optimizer = torch.optim.SGD(self.trained(), lr=lr, momentum=momentum)
        for x, y in batches:
            loss = self.loss(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def upload(self) -> list[Tensor]:
        """What the server averages."""
        return [p.data for name in self.shared for p in getattr(self, name).parameters()]

    def receive(self, averages: list[Tensor]) -> None:
        """Takes over the server's averages, in the order of ``upload``."""
        overwrite((p for name in self.shared for p in getattr(self, name).parameters()), averages)


class FedPer(FedAvg):
    """The head stays at the client."""

    shared = ("extractor",)


def overwrite(parameters: Iterable[nn.Parameter], values: Iterable[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value.data.clone()
