"""FedPick's feature selector, which chooses each sample's features that are relevant to the client."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from pfl_fast import ops


class FeatureSelector(nn.Module):
    """Masks its input with :func:`pfl_fast.ops.gumbel_mask` and logits from ``Linear(d, d/2) - ReLU - Linear(d/2, d)``.

    The mask is random in training mode and deterministic in evaluation mode.

    Args:
        features: number of features d, at least 2; d / 2 is rounded down.
        tau: temperature of the mask.
        threshold: threshold of the hard mask, between 0 and 1.
        hard: True assigns each feature to one side (straight-through gradient), False splits it by the soft mask.
        device: device of the parameters.
        dtype: dtype of the parameters.

    >>> import torch
    >>> selector = FeatureSelector(8).eval()
    >>> z = torch.randn(3, 8)
    >>> selected, rest = selector(z)
    >>> torch.equal(selected + rest, z)
    True
    """

    def __init__(
        self,
        features: int,
        tau: float = 1.0,
        threshold: float = 0.5,
        hard: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if features < 2:
            raise ValueError(f"FeatureSelector: features must be at least 2, got {features}")
        self.tau, self.threshold, self.hard = tau, threshold, hard
        self.logits = nn.Sequential(
            nn.Linear(features, features // 2, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Linear(features // 2, features, device=device, dtype=dtype),
        )

    def forward(self, z: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Splits ``z`` ``[..., d]`` into ``selected`` and ``rest``; training mode requires an int64 ``seed``."""
        return self.split(z, self.logits(z), seed)

    def split(self, z: Tensor, logits: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Applies ``forward`` with precomputed ``logits(z)``."""
        # Under autocast the linear layers return half logits; the mask has the dtype of the features.
        logits = logits.to(z.dtype)
        return ops.gumbel_mask(z, logits, seed, self.tau, self.threshold, self.hard, noise=self.training)

    def selects(self, logits: Tensor) -> Tensor:
        """Returns the hard mask without noise as booleans ``[..., d]``; ``logits >= 0`` at threshold 0.5."""
        return logits >= self.tau * math.log(self.threshold / (1 - self.threshold))

    def extra_repr(self) -> str:
        """Returns the options."""
        return f"tau={self.tau}, threshold={self.threshold}, hard={self.hard}"
