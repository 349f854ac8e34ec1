"""FedAvg and FedPer, and the base class of clients: a copy of the model with training and evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class FedAvg(nn.Module):
    """One client; all parameters are shared.

    Attributes:
        optimizer: class of the optimizer.

    Args:
        extractor: module that maps ``[b, ...]`` to features ``[b, K]``; copied.
        head: module that maps ``[b, K]`` to logits ``[b, C]``; copied.
        width: number of features K.
    """

    shared: ClassVar[tuple[str, ...]] = ("extractor", "head")
    optimizer: ClassVar[type[torch.optim.Optimizer]] = torch.optim.SGD

    def __init__(self, extractor: nn.Module, head: nn.Module, width: int) -> None:
        super().__init__()
        self.extractor, self.head, self.width = deepcopy(extractor), deepcopy(head), width

    def forward(self, x: Tensor) -> Tensor:
        """Returns the client's logits ``[b, C]``."""
        return self.head(self.extractor(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    def trained(self) -> Iterable[nn.Parameter]:
        return self.parameters()

    def fit(self, batches: Iterable, lr: float, momentum: float) -> None:
        """Trains for one epoch; ``batches`` can be iterated over repeatedly."""
        self.train()
        optimizer = self.optimizer(self.trained(), lr=lr, momentum=momentum)
        for x, y in batches:
            loss = self.loss(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def upload(self) -> list[Tensor]:
        """Returns the tensors that the server averages."""
        return [p.data for name in self.shared for p in getattr(self, name).parameters()]

    def receive(self, averages: list[Tensor]) -> None:
        """Loads the server's averages, in the order of ``upload``."""
        overwrite((p for name in self.shared for p in getattr(self, name).parameters()), averages)


class FedPer(FedAvg):
    """One client; the head is personal."""

    shared = ("extractor",)


def overwrite(parameters: Iterable[nn.Parameter], values: Iterable[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value.data.clone()
