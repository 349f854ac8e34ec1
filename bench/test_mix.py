"""``mix`` forward and backward at the size of FedCP's Tiny-ImageNet model and of 20 stacked MNIST models."""

from __future__ import annotations

import pytest
import torch

from bench.test_aggregate import CNN, bytes_of
from bench.test_sgd import MNIST
from pfl_fast import ops
from pfl_fast.ops import reference


def formula(local, global_, choice, segments=None):
    """The plain formula, without special cases for choices of exactly 0 or 1."""
    chosen = [choice if segments is None else choice[s] for s in segments or local]
    return [x + c * (y - x) for x, y, c in zip(local, global_, chosen, strict=True)]


def both(function, local, global_, choice, grads, *options):
    results = function(local, global_, choice, *options)
    return torch.autograd.grad(results, [choice, *local, *global_], grads)


def model(shapes, requires_grad=True):
    return [torch.randn(s, requires_grad=requires_grad) for s in shapes]


def compete(race, function_of, arguments, shapes):
    """Compares ``function_of(mix)`` for the native operator, the reference and the plain formula."""
    native, plain, naive = function_of(ops.mix), function_of(reference.mix), function_of(formula)
    compiled = torch.compile(plain)
    # Forward: two reads and a write; backward: three reads and two writes.
    race(
        {
            "native": lambda: both(native, *arguments),
            "reference": lambda: both(plain, *arguments),
            "torch.compile of the reference": lambda: both(compiled, *arguments),
            "plain formula": lambda: both(naive, *arguments),
            "native, forward": lambda: native(*arguments[:3], *arguments[4:]),
            "plain formula, forward": lambda: naive(*arguments[:3], *arguments[4:]),
        },
        bytes_moved=8 * bytes_of(model(shapes, requires_grad=False)),
        goals={"reference": 3.0},
    )


@pytest.mark.parametrize("segments", [None, list(range(8))], ids=["scalar", "8_segments"])
def test_mix_tiny(race, segments):
    choice = (torch.tensor(0.3) if segments is None else torch.rand(8)).requires_grad_()
    arguments = (model(CNN), model(CNN), choice, model(CNN, requires_grad=False), segments)
    compete(race, lambda mix: mix, arguments, CNN)


def test_mix_20_stacked_mnist(race):
    shapes = [(20, *s) for s in MNIST]
    choice = torch.rand(20, requires_grad=True)
    arguments = (model(shapes), model(shapes), choice, model(shapes, requires_grad=False))
    compete(race, lambda mix: torch.vmap(lambda x, y, c: mix(x, y, c)), arguments, shapes)
