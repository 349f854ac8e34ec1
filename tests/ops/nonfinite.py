"""Gradients of conv_relu_pool that must be NaN or infinite."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def gradients_not_finite(x: Tensor, weight: Tensor, index: Tensor, grad: Tensor, padding: int) -> tuple[Tensor, ...]:
    """Masks of the gradients of x, weight and bias with a term that is NaN or infinite.

    The terms of a sum are those of windows whose result is positive or NaN: the gradient times a weight, or times a
    pixel, which is 0 in the padding.

    Args:
        x: ``[b, c, h, w]``, finite or not, as all arguments.
        weight: ``[o, c, k, k]``.
        index: ``[b, o, ho, wo]`` positions of the maxima, 4 where the result is 0.
        grad: gradient of the result.
        padding: zeros on each side.
    """
    (outputs, channels, k, _), (height, width) = weight.shape, x.shape[-2:]
    columns = width + 2 * padding - k + 1
    patches = functional.unfold(x.double(), k, padding=padding)  # [b, c k k, pixels]
    row = 2 * torch.arange(index.shape[-2]).view(-1, 1) + index.long() // 2
    column = 2 * torch.arange(index.shape[-1]) + index.long() % 2
    flows = (index < 4).flatten(2)
    pixel = torch.where(flows, (row * columns + column).flatten(2), 0).unsqueeze(2)  # [b, o, 1, windows]
    pixel = pixel.expand(-1, -1, channels * k * k, -1)
    grads, flows = grad.double().flatten(2).unsqueeze(2), flows.unsqueeze(2)
    inputs = patches.unsqueeze(1).expand(-1, outputs, -1, -1).gather(3, pixel)
    of_weight = (~(grads * inputs).isfinite() & flows).any(3).any(0).view_as(weight)
    of_bias = (~grads.isfinite() & flows).any(3).any(2).any(0)
    bad = ~(grads * weight.double().flatten(1).unsqueeze(-1)).isfinite() & flows
    counts = torch.zeros_like(patches)
    for output in range(outputs):
        counts.scatter_add_(2, pixel[:, output], bad[:, output].double())
    of_x = functional.fold(counts, (height, width), k, padding=padding) > 0
    return of_x, of_weight, of_bias
