import pytest
import torch
from torch import nn

from pfl_fast import ops
from pfl_fast.nn import ConvReluPool
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
