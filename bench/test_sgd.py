"""``sgd_`` at the size of FedCP's Tiny-ImageNet model (5.7 M values) and of 20 stacked MNIST models (0.58 M each)."""

from __future__ import annotations

import pytest
import torch

from bench.test_aggregate import CNN, bytes_of
from pfl_fast import ops
from pfl_fast.ops import reference

MNIST = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1024), (512,), (10, 512), (10,)]
MODELS = {"tiny": CNN, "20_stacked_mnist": [(20, *shape) for shape in MNIST]}
SETTINGS = {
    "plain": {"lr": 0.01},
    "momentum_and_decay": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
}


def optimizer(shapes, settings, **implementation):
    params = [torch.randn(s, requires_grad=True) for s in shapes]
    for p in params:
        p.grad = 1e-3 * torch.randn_like(p)
    return torch.optim.SGD(params, **settings, **implementation).step


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", SETTINGS)
def test_sgd(race, kind, model):
    shapes, settings = MODELS[model], SETTINGS[kind]
    params, grads, buffers = ([torch.randn(s) for s in shapes] for _ in range(3))
    # Parameters and, with momentum, buffers are read and written; gradients are read. Half of a copy's bytes are reads.
    bytes_moved = (5 if "momentum" in settings else 3) * bytes_of(params)
    source = torch.randn(bytes_moved // 8)
    target = torch.empty_like(source)

    def step(function):
        with torch.no_grad():
            function(params, grads, buffers, [], **settings)

    compiled = torch.compile(reference.sgd_)
    race(
        {
            "native": lambda: ops.sgd_(params, grads, buffers, **settings),
            "torch.optim.SGD foreach=True": optimizer(shapes, settings, foreach=True),
            "torch.optim.SGD foreach=False": optimizer(shapes, settings, foreach=False),
            "torch.optim.SGD fused=True": optimizer(shapes, settings, fused=True),
            "reference": lambda: step(reference.sgd_),
            "torch.compile of the reference": lambda: step(compiled),
            "plain copy of the same bytes": lambda: target.copy_(source),
        },
        bytes_moved=bytes_moved,
        # Plain SGD is one pass over memory in torch too.
        goals={"torch.optim.SGD foreach=True": 1.5},
    )


def test_sgd_with_a_pull(race):
    """FedProx: torch needs the proximal gradient as a separate tensor."""
    shapes, settings = CNN, {"lr": 0.01, "momentum": 0.9}
    params, grads, buffers, center = ([torch.randn(s) for s in shapes] for _ in range(4))
    theirs = [p.clone().requires_grad_() for p in params]
    step = torch.optim.SGD(theirs, foreach=True, **settings).step

    def explicit():
        with torch.no_grad():
            for p, g, c in zip(theirs, grads, center, strict=True):
                p.grad = g.add(p - c, alpha=0.1)
        step()

    race(
        {
            "native": lambda: ops.sgd_(params, grads, buffers, center, proximal=0.1, **settings),
            "explicit gradient, foreach=True": explicit,
        },
        bytes_moved=6 * bytes_of(params),
    )
