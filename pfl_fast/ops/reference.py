"""Every operator again in plain torch: what it means, and what runs where there is no native library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def aggregate(stacked: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """``out_t[m] = sum_n weights[m, n] * stacked_t[n]``, summed in float32 (float64 for float64 tensors)."""
    results = []
    for x in stacked:
        sum_type = torch.promote_types(x.dtype, torch.float32)
        results.append(torch.tensordot(weights.to(sum_type), x.to(sum_type), dims=1).to(x.dtype))
    return results


def count_nonfinite(stacked: Sequence[Tensor], clients: int) -> Tensor:
    """How many values of each client's rows are NaN or infinite."""
    counts = [torch.isfinite(x).logical_not().reshape(clients, -1).sum(1) for x in stacked if x.numel()]
    device = stacked[0].device if stacked else None
    return torch.stack(counts).sum(0) if counts else torch.zeros(clients, dtype=torch.int64, device=device)
