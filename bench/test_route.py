"""``route`` at FedCP's sizes: a batch of 10 with 512 features, 20 clients stacked, and a wide batch of 64."""

from __future__ import annotations

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference

SHAPES = {"one client": (10, 512), "20 clients": (20, 10, 512), "wide": (64, 4096)}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def make(shape):
    return torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], 2 * shape[-1], requires_grad=True)


@each_shape
def test_route_forward(race, shape):
    h, a = (t.detach() for t in make(shape))
    compiled = torch.compile(reference.route)
    race(
        {
            "native": lambda: ops.route(h, a),
            "reference": lambda: reference.route(h, a),
            "torch.compile of the reference": lambda: compiled(h, a),
        },
        bytes_moved=5 * h.numel() * 4,
    )


@each_shape
@pytest.mark.parametrize("noisy", [False, True], ids=["softmax", "gumbel"])
def test_route_forward_and_backward(race, shape, noisy):
    h, a = make(shape)
    grads = torch.randn(shape), torch.randn(shape)
    seed = torch.arange(shape[0]) if len(shape) == 3 else torch.tensor(1)
    compiled = torch.compile(reference.route)

    def both(function):
        return torch.autograd.grad(function(h, a, seed if noisy else None), [h, a], grads)

    race(
        {
            "native": lambda: both(ops.route),
            "reference": lambda: both(reference.route),
            "torch.compile of the reference": lambda: both(compiled),
        },
        bytes_moved=13 * h.numel() * 4,
    )
