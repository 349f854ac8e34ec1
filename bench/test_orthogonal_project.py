"""``orthogonal_project`` as in FediOS with 20 clients (rank 24 of 512), single and stacked, and with 8192 features.

Common practice is the dense form: P = A A^T once, then f P in every step.
"""

from __future__ import annotations

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference

# clients, samples, features, rank
SIZES = [((), 10, 512, 24), ((), 64, 512, 24), ((20,), 10, 512, 24), ((), 64, 8192, 390)]


def name_of(size):
    clients, samples, features, rank = size
    return "x".join(map(str, (*clients, samples, features))) + f" rank {rank}"


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_orthogonal_project(race, size):
    clients, samples, features, rank = size
    f_g, f_p = (torch.randn(*clients, samples, features, requires_grad=True) for _ in range(2))
    basis_g = torch.linalg.qr(torch.randn(features, rank)).Q.contiguous()
    basis_p = torch.linalg.qr(torch.randn(*clients, features, rank)).Q.contiguous()
    dense_g, dense_p = basis_g @ basis_g.mT, basis_p @ basis_p.mT
    compiled = torch.compile(reference.orthogonal_project, dynamic=False)
    cotangents = [torch.randn(*clients, samples, features) for _ in range(3)] + [torch.randn(*clients, samples)]

    def dense(f_g, f_p):
        g, p = f_g @ dense_g, f_p @ dense_p
        return g, p, 0.5 * g + 0.5 * p, (g * p).sum(-1)

    def forward_and_backward(function, *constants):
        return torch.autograd.grad(function(f_g, f_p, *constants), [f_g, f_p], cotangents)

    constants = basis_g, basis_p, 0.5, False
    candidates = {
        "native": lambda: forward_and_backward(ops.orthogonal_project, *constants),
        "dense": lambda: forward_and_backward(dense),
        "reference (low rank)": lambda: forward_and_backward(reference.orthogonal_project, *constants),
        "torch.compile of the reference": lambda: forward_and_backward(compiled, *constants),
    }
    race(candidates, goals={"dense": 2.0})
