import copy

import pytest
import torch
from torch import nn

from pfl_fast import ops
from pfl_fast.nn import Linear, replace_linear
from pfl_fast.testing import assert_close, same_bits

INPUTS, OUTPUTS, ROWS = 256, 300, 20  # enough for the native operator


def pair(*arguments, **options):
    """The layer, and the one it stands for, from the same random numbers."""
    torch.manual_seed(4)
    layer = Linear(*arguments, **options)
    torch.manual_seed(4)
    return layer, nn.Linear(*arguments, **options)


def operators_called(function):
    with torch.profiler.profile() as profile:
        function()
    return {event.name for event in profile.events()}


@pytest.mark.parametrize("bias", [True, False])
def test_names_and_initial_values_are_those_of_nn_linear(bias):
    layer, plain = pair(5, 3, bias=bias)
    assert isinstance(layer, nn.Linear)
    assert list(layer.state_dict()) == list(plain.state_dict()) == ["weight", "bias"][: 1 + bias]
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_results_and_gradients_are_those_of_nn_linear(implementation, bias):
    layer, plain = pair(INPUTS, OUTPUTS, bias=bias)
    x = torch.randn(ROWS, INPUTS)
    with ops.use(implementation):
        out = layer(x)
    expected = plain(x)
    assert_close(out, expected, scale=10.0)
    gradients = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
    for mine, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), plain.parameters()), strict=True):
        assert_close(mine, theirs, scale=100.0)


def test_few_rows_run_natively_and_clients_stacked_by_vmap_have_the_same_bits():
    layers = [Linear(INPUTS, OUTPUTS) for _ in range(3)]
    x = torch.randn(3, ROWS, INPUTS)
    stacked = {name: torch.stack([layer.state_dict()[name] for layer in layers]) for name in ("weight", "bias")}

    def run():
        return torch.vmap(lambda parameters, x: torch.func.functional_call(layers[0], parameters, (x,)))(stacked, x)

    assert "pfl_fast::linear" in operators_called(run)
    with torch.no_grad():
        assert same_bits(run(), torch.stack([layer(x[i]) for i, layer in enumerate(layers)]))


@pytest.mark.parametrize("shape", [(INPUTS,), (2, ROWS, INPUTS), (2, 3, 4, INPUTS)])
def test_anything_but_rows_is_as_with_nn_linear(shape):
    layer, plain = pair(INPUTS, OUTPUTS)
    x = torch.randn(shape)
    assert torch.equal(layer(x), plain(x))


def test_autocast_is_as_with_nn_linear():
    layer, plain = pair(INPUTS, OUTPUTS)
    x = torch.randn(ROWS, INPUTS)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = layer(x), plain(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected)


class Own(nn.Linear):
    """A subclass may do anything."""


def model():
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4, bias=False), Own(4, 4)))
    layers.append(layers[0])  # one layer in two places
    return layers


def test_plain_layers_are_replaced_in_place_and_share_their_parameters():
    plain = model().eval()
    before = dict(plain.state_dict(keep_vars=True))
    replaced = replace_linear(plain)
    assert replaced is plain
    assert [type(layer) for layer in plain.modules() if isinstance(layer, nn.Linear)] == [Linear, Linear, Own]
    assert plain[0] is plain[3]
    after = plain.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert not any(layer.training for layer in plain.modules())
    assert plain[2][0].bias is None
    x = torch.randn(2, 6)
    assert_close(plain[:3](x), model()[:3](x))


def test_a_layer_itself_is_returned_replaced():
    layer = nn.Linear(3, 2)
    replaced = replace_linear(layer)
    assert type(replaced) is Linear
    assert replaced.weight is layer.weight
    assert repr(replaced) == repr(layer)
    assert replace_linear(replaced) is replaced


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: layer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.register_buffer("mask", torch.ones(2)),
        lambda layer: layer.add_module("inner", nn.ReLU()),
        lambda layer: setattr(layer, "scale", 2.0),
        lambda layer: setattr(layer, "forward", layer.forward),
        lambda layer: nn.utils.parametrizations.weight_norm(layer),
        lambda layer: layer.register_state_dict_post_hook(lambda *_: None),
    ],
)
def test_layers_with_something_of_their_own_stay(change):
    layers = nn.Sequential(nn.Linear(3, 2))
    change(layers[0])
    layer = layers[0]
    assert replace_linear(layers)[0] is layer


def test_replaced_models_can_be_copied_and_moved():
    layers = replace_linear(model())
    twin = copy.deepcopy(layers).double()
    assert type(twin[0]) is Linear
    assert twin[0].weight is not layers[0].weight
    assert twin[:3](torch.randn(2, 6, dtype=torch.float64)).dtype == torch.float64
