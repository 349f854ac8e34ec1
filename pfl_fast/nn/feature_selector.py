"""FedPick's feature selector: which features matter to this client, decided per sample."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from pfl_fast import ops


class FeatureSelector(nn.Module):
    """``Linear(d, d/2) - ReLU - Linear(d/2, d)``, whose output masks its input by :func:`pfl_fast.ops.gumbel_mask`.

    Noise is on in training mode and off in evaluation mode, where the result is deterministic.

    Args:
        features: d, at least 2; half of an odd one is rounded down.
        tau: temperature of the mask.
        threshold: of the hard mask, between 0 and 1.
        hard: each feature goes to one side (straight-through gradient), or both get their share.
        device, dtype: of the parameters.

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
        """Splits ``z`` ``[..., d]`` into ``selected`` and ``rest``; training mode needs an int64 ``seed``."""
        return self.split(z, self.logits(z), seed)

    def split(self, z: Tensor, logits: Tensor, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``forward`` for whoever has ``logits(z)`` already."""
        # Under autocast the linear layers give half logits; the mask takes the type of the features.
        logits = logits.to(z.dtype)
        return ops.gumbel_mask(z, logits, seed, self.tau, self.threshold, self.hard, noise=self.training)

    def selects(self, logits: Tensor) -> Tensor:
        """``[..., d]`` booleans: what the hard mask selects without noise, ``logits >= 0`` at threshold 0.5."""
        return logits >= self.tau * math.log(self.threshold / (1 - self.threshold))

    def extra_repr(self) -> str:
        """The options, for ``print(model)``."""
        return f"tau={self.tau}, threshold={self.threshold}, hard={self.hard}"
