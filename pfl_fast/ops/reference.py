"""Reference implementations of all operators in plain torch, also used if the native library is not available."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def aggregate(stacked: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """Returns ``out_t[m] = sum_n weights[m, n] * stacked_t[n]``, summed in float32 (float64 for float64 tensors)."""
    results = []
    for x in stacked:
        sum_type = torch.promote_types(x.dtype, torch.float32)
        results.append(torch.tensordot(weights.to(sum_type), x.to(sum_type), dims=1).to(x.dtype))
    return results


def count_nonfinite(stacked: Sequence[Tensor], clients: int) -> Tensor:
    """Returns the number of NaN and infinite values in each client's rows."""
    counts = [torch.isfinite(x).logical_not().reshape(clients, -1).sum(1) for x in stacked if x.numel()]
    device = stacked[0].device if stacked else None
    return torch.stack(counts).sum(0) if counts else torch.zeros(clients, dtype=torch.int64, device=device)


def philox_uniform(seed: Tensor, shape: Sequence[int]) -> Tensor:
    """Computes Philox4x32-10 in int64 arithmetic: products wrap, shifts and masks extract their 32-bit halves."""
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


def sgd_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    center: Sequence[Tensor],
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    proximal: float = 0.0,
    first_step: bool = False,
) -> None:
    """Performs one in-place SGD step with the operations of ``torch.optim.SGD``, in float32 for half types."""
    for t, param in enumerate(params):
        sum_type = torch.promote_types(param.dtype, torch.float32)
        p, g = param.to(sum_type), grads[t].to(sum_type)
        if proximal != 0:
            g = g.add(p - center[t].to(sum_type), alpha=proximal)
        if weight_decay != 0:
            g = g.add(p, alpha=weight_decay)
        if momentum != 0:
            buffer = momentum_buffers[t]
            velocity = g if first_step else (buffer.to(sum_type) * momentum).add(g, alpha=1 - dampening)
            g = g.add(velocity, alpha=momentum) if nesterov else velocity
            buffer.copy_(velocity)
        param.copy_(p.add(g, alpha=-lr))


def route(h: Tensor, a: Tensor, seed: Tensor | None = None, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """Returns ``(r * h, s * h)`` with [r; s] = softmax over the halves of ``a``; a seed adds noise to the first."""
    sum_type = torch.promote_types(h.dtype, torch.float32)
    pairs = a.to(sum_type).unflatten(-1, (2, h.shape[-1]))
    if seed is not None:
        noise = torch.logit(philox_uniform(seed, h.shape[-2:]).to(sum_type))
        pairs = pairs + torch.stack([noise, torch.zeros_like(noise)], -2)
    shares = torch.softmax(pairs if tau == 1 else pairs / tau, -2)
    global_part, personal_part = (shares * h.to(sum_type).unsqueeze(-2)).to(h.dtype).unbind(-2)
    return global_part, personal_part


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """Applies convolution, ReLU and max-pooling; stacked clients are groups of one convolution, as under vmap."""
    sum_type = torch.promote_types(x.dtype, torch.float32)
    batch, (samples, channels), size = x.shape[:-4], x.shape[-4:-2], x.shape[-2:]
    outputs, clients = weight.shape[-4], math.prod(batch)
    if clients * samples == 0:  # conv2d is not called for empty batches
        height, width = ((side + 2 * padding - weight.shape[-1] + 1) // 2 for side in size)
        return (x.sum() + weight.sum() + bias.sum()).expand(*batch, samples, outputs, height, width)
    images = x.to(sum_type).reshape(clients, samples, channels, *size).transpose(0, 1).flatten(1, 2)
    kernels, biases = weight.to(sum_type).reshape(-1, *weight.shape[-3:]), bias.to(sum_type).reshape(-1)
    convolved = torch.nn.functional.conv2d(images, kernels, biases, padding=padding, groups=clients)
    pooled = torch.nn.functional.max_pool2d(torch.relu(convolved), 2)
    by_client = pooled.reshape(samples, clients, outputs, *pooled.shape[-2:]).transpose(0, 1)
    return by_client.reshape(*batch, samples, outputs, *pooled.shape[-2:]).to(x.dtype)


def mmd_rbf(x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> Tensor:
    """Computes the MMD as FedCP's code does, with distances from Gram matrices and one exponential per bandwidth.

    Such distances are differences of sums and may be negative by rounding; they are clamped to 0.
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


def gumbel_mask(
    z: Tensor, logits: Tensor, seed: Tensor | None, tau: float = 1.0, threshold: float = 0.5, hard: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns ``z * m, z * (1 - m)``: logistic noise in the mask if there is a seed, straight-through if ``hard``."""
    sum_type = torch.promote_types(z.dtype, torch.float32)
    noisy = logits.to(sum_type)
    if seed is not None:
        noisy = noisy + torch.logit(philox_uniform(seed, z.shape[seed.dim() :]).to(sum_type))
    mask = torch.sigmoid(noisy / tau)
    if hard:
        # mask >= threshold, compared before the sigmoid so that its rounding cannot change the result.
        chosen = (noisy >= tau * math.log(threshold / (1 - threshold))).to(sum_type)
        mask = chosen + (mask - mask.detach())
    wide = z.to(sum_type)
    return (wide * mask).to(z.dtype), (wide * (1 - mask)).to(z.dtype)


def mix(
    local: Sequence[Tensor],
    global_: Sequence[Tensor],
    choice: Tensor | Sequence[Tensor],
    segments: Sequence[int] | None = None,
    hard: bool = False,
) -> list[Tensor]:
    """Returns ``local + c * (global_ - local)``, exactly local for c = 0 and global for c = 1; c = choice[segment]."""
    results = []
    for t, (x, y) in enumerate(zip(local, global_, strict=True)):
        sum_type = torch.promote_types(x.dtype, torch.float32)
        if isinstance(choice, Tensor):
            wide = choice.to(sum_type)
            c = wide if segments is None else wide[segments[t]]
        else:
            c = choice[t].to(sum_type)
        results.append(_mix_one(x.to(sum_type), y.to(sum_type), c, hard).to(x.dtype))
    return results


def _mix_one(x: Tensor, y: Tensor, c: Tensor, hard: bool) -> Tensor:
    """Mixes one tensor. Where c selects x or y, a term that is zero carries the gradient of c."""
    value = (c >= 0.5).to(c.dtype) if hard else c.detach()
    selects = (value == 0) | (value == 1)
    difference = y - x
    # The value that is not selected may be infinite or NaN, and must not reach the result or the gradients.
    difference = torch.where(selects & ~torch.isfinite(difference), torch.zeros_like(difference), difference)
    selected = torch.where(value == 1, y, x) + (c - c.detach()) * difference
    return torch.where(selects, selected, x + c * difference)


def cpn_route(
    h: Tensor, a: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5, seed: Tensor | None = None, tau: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Applies ``route`` with ``relu(layer_norm(a) * gamma + beta)``, in float32 (float64 for float64 tensors)."""
    sum_type = torch.promote_types(h.dtype, torch.float32)
    width = [a.shape[-1]]
    if gamma.dim() == 1:
        y = torch.nn.functional.layer_norm(a.to(sum_type), width, gamma.to(sum_type), beta.to(sum_type), eps)
    else:
        x = torch.nn.functional.layer_norm(a.to(sum_type), width, eps=eps)
        y = x * gamma.to(sum_type).unsqueeze(-2) + beta.to(sum_type).unsqueeze(-2)
    global_part, personal_part = route(h.to(sum_type), torch.relu(y), seed, tau)
    return global_part.to(h.dtype), personal_part.to(h.dtype)


def take_normalized(
    images: Tensor, index: Tensor, mean: Tensor, std: Tensor, channels_last: bool, dtype: torch.dtype
) -> Tensor:
    """Returns ``(images[index] / 255 - mean) / std`` as [*batch, C, H, W], rounded once from float32 (float64)."""
    sum_type = torch.promote_types(dtype, torch.float32)
    values = images[index].to(sum_type).div(255).sub(mean.to(sum_type)).div(std.to(sum_type))
    result = values.to(dtype).movedim(-1, -3)
    return result if channels_last else result.contiguous()


def distill_losses(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns batch means of two cross-entropies, the negative entropy of ``y_u`` and a symmetric KL divergence."""
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


def orthogonal_project(
    f_g: Tensor, f_p: Tensor, basis_g: Tensor, basis_p: Tensor, alpha: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns ``g = (f_g A_g) A_g^T``, ``p = (f_p A_p) A_p^T``, their weighted sum, and ``g . p`` per sample."""
    sum_type = torch.promote_types(f_g.dtype, torch.float32)

    def project(features: Tensor, basis: Tensor) -> Tensor:
        basis = basis.detach().to(sum_type)
        projected = (features.to(sum_type) @ basis) @ basis.mT
        return torch.relu(projected) if relu else projected

    g, p = project(f_g, basis_g), project(f_p, basis_p)
    fused, inner = alpha * g + (1 - alpha) * p, (g * p).sum(-1)
    return g.to(f_g.dtype), p.to(f_g.dtype), fused.to(f_g.dtype), inner.to(f_g.dtype)
