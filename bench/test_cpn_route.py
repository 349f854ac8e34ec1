"""``cpn_route`` at FedCP's sizes: a batch of 10 with 512 features, 20 clients stacked, a wide batch of 64.

For one client's batch the overhead of calls, mostly autograd's, dominates: there is no goal.
"""

from __future__ import annotations

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference

SHAPES = {"one client": (10, 512), "20 clients": (20, 10, 512), "wide": (64, 4096)}
GOALS = {"reference": 3.0, "torch.compile of the reference": 1.2}
each_shape = pytest.mark.parametrize("name", SHAPES)


def make(*shape):
    *batch, rows, features = shape
    shapes = [shape, (*batch, rows, 2 * features), (*batch, 2 * features), (*batch, 2 * features)]
    return [torch.randn(s, requires_grad=True) for s in shapes]


@each_shape
def test_cpn_route_forward(race, name):
    tensors = [t.detach() for t in make(*SHAPES[name])]
    compiled = torch.compile(reference.cpn_route)
    race(
        {
            "native": lambda: ops.cpn_route(*tensors),
            "reference": lambda: reference.cpn_route(*tensors),
            "torch.compile of the reference": lambda: compiled(*tensors),
        },
        bytes_moved=5 * tensors[0].numel() * 4,
    )


@each_shape
def test_cpn_route_forward_and_backward(race, name):
    tensors = make(*SHAPES[name])
    grads = [torch.randn(SHAPES[name]) for _ in range(2)]
    compiled = torch.compile(reference.cpn_route)

    def both(function):
        return torch.autograd.grad(function(*tensors), tensors, grads)

    race(
        {
            "native": lambda: both(ops.cpn_route),
            "reference": lambda: both(reference.cpn_route),
            "torch.compile of the reference": lambda: both(compiled),
        },
        bytes_moved=13 * tensors[0].numel() * 4,
        goals=None if name == "one client" else GOALS,
    )
