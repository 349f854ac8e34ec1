"""Every operator again in plain torch: what it means, and what runs where there is no native library."""

from __future__ import annotations

import math
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


def philox_uniform(seed: Tensor, shape: Sequence[int]) -> Tensor:
    """Philox4x32-10 in int64 arithmetic: products wrap around, and shifts and masks take them apart."""
    low = 0xFFFFFFFF
    numel = math.prod(shape)
    block = torch.arange((numel + 3) // 4, device=seed.device).expand(*seed.shape, -1)
    key0, key1 = seed.unsqueeze(-1) & low, seed.unsqueeze(-1) >> 32 & low
    c0, c1, c2, c3 = block & low, block >> 32, torch.zeros_like(block), torch.zeros_like(block)
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & low) ^ c1 ^ key0, p1 & low, (p0 >> 32 & low) ^ c3 ^ key1, p0 & low
        key0, key1 = key0 + 0x9E3779B9 & low, key1 + 0xBB67AE85 & low
    words = torch.stack([c0, c1, c2, c3], -1).flatten(-2)[..., :numel]
    return (((words >> 9).float() + 0.5) * 2.0**-23).reshape([*seed.shape, *shape])


def gumbel_mask(
    z: Tensor, logits: Tensor, seed: Tensor | None, tau: float = 1.0, threshold: float = 0.5, hard: bool = True
) -> tuple[Tensor, Tensor]:
    """``z * m, z * (1 - m)`` with a logistic-noise mask (none without a seed), straight-through if ``hard``."""
    sum_type = torch.promote_types(z.dtype, torch.float32)
    noisy = logits.to(sum_type)
    if seed is not None:
        noisy = noisy + torch.logit(philox_uniform(seed, z.shape[seed.dim() :]).to(sum_type))
    mask = torch.sigmoid(noisy / tau)
    if hard:
        # 1[mask >= threshold], asked of the argument: rounding of the sigmoid cannot move the border.
        chosen = (noisy >= tau * math.log(threshold / (1 - threshold))).to(sum_type)
        mask = chosen + (mask - mask.detach())
    wide = z.to(sum_type)
    return (wide * mask).to(z.dtype), (wide * (1 - mask)).to(z.dtype)


def distill_losses(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means over the batch of two cross-entropies, minus the entropy of ``y_u``, and a symmetric KL divergence."""
    sum_type = torch.promote_types(y_g.dtype, torch.float32)
    log_g, log_p, log_u = (y.to(sum_type).log_softmax(-1) for y in (y_g, y_p, y_u))
    picked = target.unsqueeze(-1)
    rows = (
        -log_g.gather(-1, picked).squeeze(-1),
        -log_p.gather(-1, picked).squeeze(-1),
        (log_u.exp() * log_u).sum(-1),
        ((log_p.exp() - log_g.exp()) * (log_p - log_g)).sum(-1),
    )
    gce, lce, ent, dis = (row.sum(-1) / max(1, target.shape[-1]) for row in rows)
    return gce, lce, ent, dis
