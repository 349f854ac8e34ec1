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
    return (((words >> 9).float() + 0.5) * 2.0**-23).reshape(*seed.shape, *shape)


def route(h: Tensor, a: Tensor, seed: Tensor | None = None, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """``(r * h, s * h)`` with [r; s] = softmax over the halves of ``a``, logistic noise on the first with a seed."""
    sum_type = torch.promote_types(h.dtype, torch.float32)
    pairs = a.to(sum_type).unflatten(-1, (2, h.shape[-1]))
    if seed is not None:
        noise = torch.logit(philox_uniform(seed, h.shape[-2:]).to(sum_type))
        pairs = pairs + torch.stack([noise, torch.zeros_like(noise)], -2)
    shares = torch.softmax(pairs if tau == 1 else pairs / tau, -2)
    global_part, personal_part = (shares * h.to(sum_type).unsqueeze(-2)).to(h.dtype).unbind(-2)
    return global_part, personal_part


def cpn_route(
    h: Tensor,
    a: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float = 1e-5,
    seed: Tensor | None = None,
    tau: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """``route`` by ``relu(layer_norm(a) * gamma + beta)``, in float32 (float64 for float64 tensors)."""
    sum_type = torch.promote_types(h.dtype, torch.float32)
    width = [a.shape[-1]]
    if gamma.dim() == 1:
        y = torch.nn.functional.layer_norm(a.to(sum_type), width, gamma.to(sum_type), beta.to(sum_type), eps)
    else:
        x = torch.nn.functional.layer_norm(a.to(sum_type), width, eps=eps)
        y = x * gamma.to(sum_type).unsqueeze(-2) + beta.to(sum_type).unsqueeze(-2)
    global_part, personal_part = route(h.to(sum_type), torch.relu(y), seed, tau)
    return global_part.to(h.dtype), personal_part.to(h.dtype)
