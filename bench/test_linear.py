"""``linear`` in the papers' models with the batch sizes of clients; one thread, since the engine trains one client per
core, and 20 clients stacked.

Gradients of 2048 x 4096 weights, and of 20 clients, exceed the allocator's cache: they are new memory in every run, and
clearing it costs all candidates at least as much as the computation.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.ops import reference

pytestmark = pytest.mark.usefixtures("one_thread")
# Rows, inputs and outputs.
CNN = [(10, 1024, 512), (10, 512, 1024), (20, 1024, 512), (32, 1024, 512), (64, 1024, 512), (100, 1024, 512)]
MLP = [(64, 784, 4096), (64, 2048, 4096), (64, 4096, 2048)]
SMALL = [(1, 1024, 512), (3, 1024, 512), (10, 512, 10)]
LR = 1e-9  # keeps the weights nearly constant
each_size = pytest.mark.parametrize("size", CNN + MLP + SMALL, ids=lambda s: "x".join(map(str, s)))


def make(size, *clients):
    rows, inputs, outputs = size
    weight = torch.randn(*clients, outputs, inputs) / inputs**0.5
    return torch.randn(*clients, rows, inputs), weight, torch.randn(*clients, outputs)


def stacked_layers(x, weight, bias):
    """Computes stacked layers as torch.vmap of F.linear does."""
    return torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)


def both(function, tensors):
    tracked = [t.clone().requires_grad_() for t in tensors]
    grad = torch.randn(*tensors[0].shape[:-1], tensors[1].shape[-2])
    return lambda: torch.autograd.grad(function(*tracked), tracked, grad)


@each_size
def test_linear_forward(race, size):
    tensors = make(size)
    compiled = torch.compile(reference.linear, dynamic=False)
    race(
        {
            "native": lambda: ops.linear(*tensors),
            "torch's layer": lambda: functional.linear(*tensors),
            "torch.compile of the reference": lambda: compiled(*tensors),
        }
    )


@each_size
def test_linear_forward_and_backward(race, size):
    tensors = make(size)
    compiled = torch.compile(reference.linear, dynamic=False)
    race(
        {
            "native": both(ops.linear, tensors),
            "torch's layer": both(functional.linear, tensors),
            "torch.compile of the reference": both(compiled, tensors),
        },
        goals={"torch's layer": 1.7 if size in CNN[:2] else 1.0},
    )


@pytest.mark.parametrize("size", CNN[:2], ids=lambda s: "x".join(map(str, s)))
def test_linear_forward_and_backward_of_20_clients(race, size):
    tensors = make(size, 20)
    compiled = torch.compile(reference.linear, dynamic=False)
    race(
        {
            "native": both(ops.linear, tensors),
            "torch's layer, stacked": both(stacked_layers, tensors),
            "torch.compile of the reference": both(compiled, tensors),
        },
        goals={"torch's layer, stacked": 1.0},
    )


@each_size
def test_linear_step(race, size):
    """Compares an SGD step from the factors of the gradient with computing the gradient first."""
    x, weight, _ = make(size)
    grad, gradient = torch.randn(size[0], size[2]), torch.empty_like(weight)

    def by_gradient():
        torch.mm(grad.t(), x, out=gradient)
        weight.add_(gradient, alpha=-LR)

    race(
        {
            "native": lambda: ops.linear_step_(weight, grad, x, lr=LR),
            "torch's product added in place": lambda: torch.addmm(weight, grad.t(), x, alpha=-LR, out=weight),
            "gradient, then added": by_gradient,
        }
    )


each_of_few = pytest.mark.parametrize("size", [CNN[0], CNN[4], *MLP[1:]], ids=lambda s: "x".join(map(str, s)))


def forward_backward_and_step(race, x, weight, bias, grad):
    x.requires_grad_()

    def all_three(layer, step):
        torch.autograd.grad(layer(x, weight, bias), x, grad)
        step()

    race(
        {
            "native": lambda: all_three(ops.linear, lambda: ops.linear_step_(weight, grad, x.detach(), lr=LR)),
            "torch's layer, product added in place": lambda: all_three(
                functional.linear, lambda: torch.addmm(weight, grad.t(), x.detach(), alpha=-LR, out=weight)
            ),
        }
    )


@each_of_few
def test_linear_behind_a_relu(race, size):
    """Two of five features are zero in the whole batch, and two of five gradients, as is common after a ReLU."""
    x, weight, bias = make(size)
    grad = torch.randn(size[0], size[2])
    x[:, torch.rand(size[1]) < 0.4] = 0
    grad[:, torch.rand(size[2]) < 0.4] = 0
    forward_backward_and_step(race, x, weight, bias, grad)


@each_of_few
def test_linear_behind_a_mask(race, size):
    """Five of six features, different ones per sample, and half of the gradients are zero, as in FedPick's selector."""
    x, weight, bias = make(size)
    grad = torch.randn(size[0], size[2])
    x *= torch.rand(x.shape) < 1 / 6
    grad *= torch.rand(grad.shape) < 1 / 2
    forward_backward_and_step(race, x, weight, bias, grad)
