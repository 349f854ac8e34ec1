"""``aggregate`` at the size of FedCP's Tiny-ImageNet experiment: 20 clients of the 4-layer CNN (5.7 M values)."""

from __future__ import annotations

import pytest
import torch

from pfl_fast import ops
from pfl_fast.ops import reference

CLIENTS = 20
CNN = [(32, 3, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 10816), (512,), (200, 512), (200,)]


@pytest.fixture(scope="module")
def weights():
    return torch.full((CLIENTS,), 1 / CLIENTS)


@pytest.fixture(scope="module")
def stacked():
    return [torch.randn(CLIENTS, *shape) for shape in CNN]


def state_dicts_of(stacked):
    return [{str(i): x[n].clone() for i, x in enumerate(stacked)} for n in range(CLIENTS)]


def state_dict_loop(dicts, weights):
    """Common practice in trainers: clone, scale and add, tensor by tensor."""
    total = {name: torch.zeros_like(tensor) for name, tensor in dicts[0].items()}
    for state_dict, weight in zip(dicts, weights.tolist(), strict=True):
        for name in total:
            total[name] += state_dict[name].clone() * weight
    return total


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def test_aggregate_forward(race, stacked, weights):
    out = [torch.empty(x.shape[1:]) for x in stacked]
    dicts = state_dicts_of(stacked)
    compiled = torch.compile(reference.aggregate)
    flat = torch.cat([x.flatten() for x in stacked])
    target = torch.empty_like(flat)
    race(
        {
            "native": lambda: ops.aggregate(stacked, weights, out=out),
            "native, new tensors": lambda: ops.aggregate(stacked, weights),
            "native, non-finite values counted": lambda: ops.aggregate_checked(stacked, weights, out=out),
            "reference": lambda: reference.aggregate(stacked, weights),
            "torch.compile of the reference": lambda: compiled(stacked, weights),
            "state-dict loop": lambda: state_dict_loop(dicts, weights),
            "plain read of the same bytes": lambda: flat.sum(),
            "plain copy of the same bytes": lambda: target.copy_(flat),
        },
        bytes_moved=bytes_of(stacked),
        goals={"state-dict loop": 8.0, "plain read of the same bytes": 0.8},
    )


def test_aggregate_state_dicts(race, stacked, weights):
    dicts = state_dicts_of(stacked)
    race(
        {
            "native": lambda: ops.aggregate_state_dicts(dicts, weights),
            "state-dict loop": lambda: state_dict_loop(dicts, weights),
        },
        bytes_moved=bytes_of(stacked),
    )


def test_aggregate_mixture_per_client(race, stacked):
    """FedAMP, FedFomo: as many mixtures as clients."""
    mixtures = torch.softmax(torch.randn(CLIENTS, CLIENTS), 1)
    out = [torch.empty_like(x) for x in stacked]

    def products_into():
        for x, o in zip(stacked, out, strict=True):
            torch.mm(mixtures, x.view(CLIENTS, -1), out=o.view(CLIENTS, -1))

    def copy():
        for x, o in zip(stacked, out, strict=True):
            o.copy_(x)

    race(
        {
            "native": lambda: ops.aggregate(stacked, mixtures),
            "reference": lambda: reference.aggregate(stacked, mixtures),
            "native, into given tensors": lambda: ops.aggregate(stacked, mixtures, out=out),
            "torch.mm into given tensors": products_into,
            "plain copy of the same bytes": copy,
        },
        bytes_moved=2 * bytes_of(stacked),
        goals={"reference": 1.0},
    )


def test_aggregate_forward_and_backward(race, weights):
    """Gradients to the stacked tensors and to the weights, on the MNIST model (0.58 M parameters)."""
    shapes = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1024), (512,), (10, 512), (10,)]
    stacked = [torch.randn(CLIENTS, *shape, requires_grad=True) for shape in shapes]
    learned = weights.clone().requires_grad_()
    compiled = torch.compile(reference.aggregate)

    def both(function):
        results = function(stacked, learned)
        return torch.autograd.grad(results, [learned, *stacked], [torch.ones_like(r) for r in results])

    race(
        {
            "native": lambda: both(ops.aggregate),
            "reference": lambda: both(reference.aggregate),
            "torch.compile of the reference": lambda: both(compiled),
        },
        bytes_moved=3 * bytes_of(stacked),
    )
