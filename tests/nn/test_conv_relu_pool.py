from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_fast import ops
from pfl_fast.nn import ConvReluPool
from pfl_fast.nn.conv_relu_pool import StackedConvReluPool, by_convolution, by_product
from pfl_fast.ops import dispatch
from pfl_fast.ops.stack import stack_of
from pfl_fast.testing import assert_close


def pair(*arguments, **options):
    """Returns the layer and the equivalent torch layers with the same initial values."""
    torch.manual_seed(4)
    layer = ConvReluPool(*arguments, **options)
    torch.manual_seed(4)
    return layer, nn.Sequential(nn.Conv2d(*arguments, **options), nn.ReLU(), nn.MaxPool2d(2))


def test_names_and_initial_values_equal_those_of_conv2d():
    layer, plain = pair(3, 8, 5, padding=2)
    assert isinstance(layer, nn.Conv2d)
    assert list(layer.state_dict()) == list(plain[0].state_dict()) == ["weight", "bias"]
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize(("channels", "padding"), [(1, 0), (3, 2)])
def test_results_and_gradients_equal_those_of_the_layers(implementation, channels, padding):
    layer, plain = pair(channels, 8, 5, padding=padding)
    x = torch.randn(4, channels, 12, 13)
    with ops.use(implementation):
        out = layer(x)
    expected = plain(x)
    assert_close(out, expected)
    gradients = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
    for mine, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), plain.parameters()), strict=True):
        assert_close(mine, theirs, scale=100.0)


def test_clients_stacked_by_vmap():
    layers = [ConvReluPool(1, 6, 3) for _ in range(3)]
    stacked = {name: torch.stack([dict(m.named_parameters())[name] for m in layers]) for name in ("weight", "bias")}
    x = torch.randn(3, 2, 1, 8, 8)
    out = torch.vmap(lambda p, x: torch.func.functional_call(layers[0], p, (x,)))(stacked, x)
    assert_close(out, torch.stack([layer(images) for layer, images in zip(layers, x, strict=True)]))


def by_stack(x, weight, bias, padding):
    stack = stack_of(x, weight, bias)
    return stack.call(StackedConvReluPool.apply, *stack.tensors, padding)


@pytest.mark.parametrize("compute", [by_convolution, by_product, by_stack])
@pytest.mark.parametrize(("channels", "padding"), [(1, 0), (3, 2)])
def test_plain_torch_has_the_results_of_the_operator(compute, channels, padding):
    torch.manual_seed(5)
    shapes = [(3, 2, channels, 9, 10), (3, 4, channels, 5, 5), (3, 4)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found = torch.vmap(lambda x, weight, bias: compute(x, weight, bias, padding))(*inputs)
    expected = ops.conv_relu_pool(*inputs, padding=padding)
    assert_close(found, expected)
    gradients = [torch.autograd.grad(y.sin().sum(), inputs) for y in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        assert_close(mine, theirs, scale=100.0)


def test_images_without_gradient_have_none():
    inputs = [torch.randn(2, 3, 1, 6, 6), torch.randn(2, 4, 1, 3, 3, requires_grad=True), torch.randn(2, 4)]
    out = torch.vmap(lambda x, weight, bias: by_stack(x, weight, bias, 0))(*inputs)
    assert out.is_contiguous()
    expected = torch.vmap(lambda x, weight, bias: by_product(x, weight, bias, 0))(*inputs)
    (mine,), (theirs,) = (torch.autograd.grad(y.sin().sum(), [inputs[1]]) for y in (out, expected))
    assert_close(mine, theirs, scale=10.0)


class Names(TorchDispatchMode):
    """Records the names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.found.add(operator._schema.name)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("device", "implementation"), [("cpu", "auto"), ("cuda", "auto"), ("cuda", "native")])
def test_what_runs_on_a_device(device, implementation, stacked):
    layer = ConvReluPool(1, 6, 3, device="meta")
    parameters = {name: p.detach().expand(2, *p.shape) for name, p in layer.named_parameters()}
    x = torch.empty(2, 3, 1, 8, 8, device="meta")
    chosen = ops.use(implementation) if implementation != "auto" else nullcontext()
    with Names() as names, chosen, dispatch.traced_as(device):
        if stacked:
            torch.vmap(lambda p, x: torch.func.functional_call(layer, p, (x,)))(parameters, x)
        else:
            layer(x[0])
    kernel = {"pfl_fast::conv_relu_pool"} & names.found
    assert bool(kernel) == (device == "cpu" or implementation == "native")
    assert ("aten::bmm" in names.found) == (not kernel and stacked)
    assert ("aten::convolution" in names.found) == (not kernel and not stacked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8,), "kernel_size must be from 1 to 7, got 8"),
        (((3, 3),), r"kernel_size must be from 1 to 7, got \(3, 3\)"),
        ((3, 3), "padding must be from 0 to 2, got 3"),
        ((3, "same"), "padding must be from 0 to 2, got 'same'"),
    ],
)
def test_other_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"ConvReluPool: {message}"):
        ConvReluPool(1, 4, *arguments)
