"""``gumbel_mask`` at the papers' sizes: FedPick with 4096 and 8192 features, a batch of 10, and 20 stacked clients."""

from __future__ import annotations

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference

# Shape, and whether the first dimension is clients with one seed each.
SIZES = [((10, 512), False), ((64, 4096), False), ((64, 8192), False), ((20, 10, 512), True)]
each_size = pytest.mark.parametrize(("shape", "stacked"), SIZES, ids=lambda value: str(value).replace(" ", ""))


def eager(z, logits, _):
    """Common practice: two Gumbel draws, a sigmoid, straight-through, two products."""
    first, second = (-torch.log(-torch.log(torch.rand_like(logits).clamp(1e-10, 1 - 1e-7))) for _ in range(2))
    soft = torch.sigmoid(logits + first - second)
    mask = (soft >= 0.5).to(z.dtype) + soft - soft.detach()
    return z * mask, z * (1 - mask)


def candidates(run):
    torch.compiler.reset()
    compiled_eager, compiled_reference = torch.compile(eager), torch.compile(reference.gumbel_mask)
    return {
        "native": lambda: run(ops.gumbel_mask),
        "eager, torch.rand noise": lambda: run(eager),
        "torch.compile of eager": lambda: run(compiled_eager),
        "reference": lambda: run(reference.gumbel_mask),
        "torch.compile of the reference": lambda: run(compiled_reference),
    }


def make(shape, stacked):
    return torch.randn(shape), torch.randn(shape), torch.arange(shape[0]) if stacked else torch.tensor(7)


@each_size
def test_gumbel_mask_forward(race, shape, stacked):
    tensors = make(shape, stacked)
    race(candidates(lambda function: function(*tensors)), bytes_moved=4 * 4 * tensors[0].numel())


@each_size
def test_gumbel_mask_forward_and_backward(race, shape, stacked):
    z, logits, seed = make(shape, stacked)
    z.requires_grad_()
    logits.requires_grad_()
    gradients = torch.randn(shape), torch.randn(shape)
    goals = {"eager, torch.rand noise": 6.0, "torch.compile of eager": 1.5} if shape == (64, 8192) else {}
    race(
        candidates(lambda function: torch.autograd.grad(function(z, logits, seed), (z, logits), gradients)),
        bytes_moved=10 * 4 * z.numel(),
        goals=goals,
    )
