"""``distill_losses`` forward and backward at the batch sizes of the papers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.ops import reference

SHAPES = [(10, 10), (64, 10), (64, 200), (20, 10, 10)]


def eager(y_g, y_p, y_u, target):
    """Common practice: one loss after another, one client after another."""
    if y_g.dim() == 3:
        return [torch.stack(parts) for parts in zip(*map(eager, y_g, y_p, y_u, target), strict=True)]
    p_u, log_g, log_p = y_u.softmax(1), y_g.log_softmax(1), y_p.log_softmax(1)
    return (
        functional.cross_entropy(y_g, target),
        functional.cross_entropy(y_p, target),
        (p_u * y_u.log_softmax(1)).sum(1).mean(),
        functional.kl_div(log_g, log_p, log_target=True, reduction="batchmean")
        + functional.kl_div(log_p, log_g, log_target=True, reduction="batchmean"),
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape).replace(" ", ""))
def test_distill_losses_forward_and_backward(race, shape):
    leaves = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    target = torch.randint(shape[-1], shape[:-1])
    weights = [torch.ones(shape[:-2])] * 4
    torch.compiler.reset()
    compiled = torch.compile(reference.distill_losses)

    def both(function):
        return torch.autograd.grad(function(*leaves, target), leaves, weights)

    race(
        {
            "native": lambda: both(ops.distill_losses),
            "reference": lambda: both(reference.distill_losses),
            "torch.compile of the reference": lambda: both(compiled),
            "eager, one loss after the other": lambda: both(eager),
        },
        bytes_moved=9 * 4 * leaves[0].numel(),
    )
