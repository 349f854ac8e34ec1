"""``mmd_rbf`` as FedCP uses it: a batch of 10 with 512 features, 20 clients at once; and larger, wider batches.

The reference computes distances from Gram matrices, as the official code does; so does the native operator if there
are many points, close to their mean. The rows named products are the arithmetic that remains.
"""

from __future__ import annotations

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference

FEDCP = (10.0, 15.0, 20.0, 50.0)
SHAPES = [(10, 512), (20, 10, 512), (64, 512), (64, 4096)]


@pytest.mark.parametrize("both", [False, True], ids=["gradient to x", "gradient to both"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_mmd_rbf(race, shape, both):
    x, y = 0.2 * torch.randn(shape), 0.2 * torch.randn(shape)
    leaves = [t.requires_grad_() for t in ((x, y) if both else (x,))]
    compiled = torch.compile(reference.mmd_rbf, dynamic=False)

    def forward_and_backward(function):
        return torch.autograd.grad(function(x, y, FEDCP).sum(), leaves)

    race(
        {
            "native": lambda: forward_and_backward(ops.mmd_rbf),
            "reference": lambda: forward_and_backward(reference.mmd_rbf),
            "torch.compile of the reference": lambda: forward_and_backward(compiled),
        },
        goals={"reference": 4.0},
    )


def test_mmd_rbf_forward(race):
    x, y = 0.2 * torch.randn(20, 10, 512), 0.2 * torch.randn(20, 10, 512)
    race(
        {
            "native": lambda: ops.mmd_rbf(x, y),
            "reference": lambda: reference.mmd_rbf(x, y, FEDCP),
        }
    )
