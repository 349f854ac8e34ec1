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


def mmd_rbf(x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> Tensor:
    """As FedCP's code has it: three Gram matrices, distances from them, one exponential per bandwidth, the mean.

    Distances are differences of sums here, so that rounding makes some negative; those count as 0.
    """
    sum_type = torch.promote_types(x.dtype, torch.float32)
    x, y = x.to(sum_type), y.to(sum_type)
    xx, yy, xy = x @ x.mT, y @ y.mT, x @ y.mT
    squares_x = xx.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).expand_as(xx)
    squares_y = yy.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).expand_as(yy)

    def kernel(distances: Tensor) -> Tensor:
        total = torch.zeros_like(distances)
        for a in bandwidths:
            total = total + torch.exp(-0.5 * distances / a)
        return total

    k_xx = kernel((squares_x + squares_x.mT - 2 * xx).clamp_min(0))
    k_yy = kernel((squares_y + squares_y.mT - 2 * yy).clamp_min(0))
    k_xy = kernel((squares_x + squares_y.mT - 2 * xy).clamp_min(0))
    return (k_xx + k_yy - 2 * k_xy).sum((-2, -1)) / max(1, x.shape[-2] ** 2)


def orthogonal_project(
    f_g: Tensor, f_p: Tensor, basis_g: Tensor, basis_p: Tensor, alpha: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``g = (f_g A_g) A_g^T``, ``p = (f_p A_p) A_p^T``, their blend, and ``g . p`` per sample; bases are constants."""
    sum_type = torch.promote_types(f_g.dtype, torch.float32)

    def project(features: Tensor, basis: Tensor) -> Tensor:
        basis = basis.detach().to(sum_type)
        projected = (features.to(sum_type) @ basis) @ basis.mT
        return torch.relu(projected) if relu else projected

    g, p = project(f_g, basis_g), project(f_p, basis_p)
    fused, inner = alpha * g + (1 - alpha) * p, (g * p).sum(-1)
    return g.to(f_g.dtype), p.to(f_g.dtype), fused.to(f_g.dtype), inner.to(f_g.dtype)
