import copy

import pytest
import torch
from torch import nn

from pfl_fast import ops
from pfl_fast.engine.local.arithmetic import with_bf16_products
from pfl_fast.nn import Linear, LinearRecorder, replace_linear
from pfl_fast.nn.linear import linear
from pfl_fast.ops import dispatch
from pfl_fast.testing import assert_close

INPUTS, OUTPUTS, ROWS = 256, 300, 20


def pair(*arguments, **options):
    """The layer, and the one it stands for, from the same random numbers."""
    torch.manual_seed(4)
    layer = Linear(*arguments, **options)
    torch.manual_seed(4)
    return layer, nn.Linear(*arguments, **options)


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


def layer_and_plain(bias=True):
    torch.manual_seed(2)
    plain = nn.Linear(5, 3, bias=bias)
    layer = Linear(5, 3, bias=bias)
    layer.load_state_dict(plain.state_dict())
    return layer, plain


def weight_gradient(loss, layer):
    """The sum of the calls' products."""
    grads = torch.autograd.grad(loss, [call.y for call in layer.recorder.calls])
    return sum(dy.t() @ call.x for dy, call in zip(grads, layer.recorder.calls, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_calls_give_the_gradient_of_the_weight(bias, tracked):
    layer, plain = layer_and_plain(bias)
    x = torch.randn(4, 5, requires_grad=tracked)
    layer.recorder = LinearRecorder(enabled=True)
    mine = (layer(x) ** 2).sum() + layer(2 * x).exp().sum()
    theirs = (plain(x) ** 2).sum() + plain(2 * x).exp().sum()
    torch.testing.assert_close(mine, theirs)
    expected = torch.autograd.grad(theirs, [plain.weight, *([x] if tracked else [])])
    torch.testing.assert_close(weight_gradient(mine, layer), expected[0])


def test_the_other_gradients_are_autograds():
    layer, plain = layer_and_plain()
    x = torch.randn(4, 5, requires_grad=True)
    layer.recorder = LinearRecorder(enabled=True)
    mine = torch.autograd.grad((layer(x) ** 2).sum(), [layer.weight, layer.bias, x], allow_unused=True)
    theirs = torch.autograd.grad((plain(x) ** 2).sum(), [plain.weight, plain.bias, x])
    assert mine[0] is None
    torch.testing.assert_close(mine[1:], theirs[1:])


@pytest.mark.parametrize("bias", [True, False])
def test_in_place_changes_of_the_result_do_not_change_gradients(bias):
    layer, plain = layer_and_plain(bias)
    x = torch.randn(4, 5)
    layer.recorder = LinearRecorder(enabled=True)
    mine, theirs = (torch.relu_(used(x).mul_(3)).sum() for used in (layer, plain))
    torch.testing.assert_close(weight_gradient(mine, layer), torch.autograd.grad(theirs, plain.weight)[0])


def test_nothing_is_recorded_if_autograd_needs_the_weight_or_gradients_are_off():
    layer, _ = layer_and_plain()
    x = torch.randn(4, 5)
    layer(x)
    assert layer.recorder is None
    layer.recorder = LinearRecorder(enabled=True)
    with torch.no_grad():
        layer(x)
    layer(x[0])
    layer(x[None])
    torch.func.functional_call(layer, {"weight": 2 * layer.weight}, (x,))
    layer.weight.requires_grad_(False)
    layer(x)
    layer.weight.requires_grad_(True)
    layer.recorder.enabled = False
    layer(x)
    assert layer.recorder.calls == []


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


def test_a_layer_itself_is_replaced():
    layer = nn.Linear(3, 2)
    shown = repr(layer)
    assert replace_linear(layer) is layer
    assert type(layer) is Linear
    assert repr(layer) == shown
    assert replace_linear(layer) is layer


def test_what_a_layer_has_of_its_own_stays():
    layer, seen = nn.Linear(3, 2), []
    layer.register_forward_hook(lambda *_: seen.append("hook"))
    layer.register_buffer("mask", torch.ones(2))
    replace_linear(layer)(torch.randn(1, 3))
    assert seen == ["hook"]
    assert "mask" in layer.state_dict()
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert type(replace_linear(parametrized)) is not Linear


def test_replaced_models_can_be_copied_and_moved():
    layers = replace_linear(model())
    plain = copy.deepcopy(layers).double()
    assert type(plain[0]) is Linear
    assert plain[0].weight is not layers[0].weight
    assert plain[:3](torch.randn(2, 6, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("bias", [True, False])
def test_a_stack_on_cuda_is_one_product_with_contiguous_gradients(bias, monkeypatch):
    torch.manual_seed(4)
    x, weight = torch.randn(3, ROWS, 7, requires_grad=True), torch.randn(3, 5, 7, requires_grad=True)
    inputs = [x, weight, *([torch.randn(3, 5, requires_grad=True)] if bias else [])]
    expected = torch.vmap(torch.nn.functional.linear)(*inputs)
    monkeypatch.setattr(dispatch, "device_type", lambda _: "cuda")
    found = torch.vmap(lambda x, weight, bias=None: linear(x, weight, bias))(*inputs)
    assert_close(found, expected)
    gradients = torch.autograd.grad(found.square().sum(), inputs)
    for mine, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), inputs), strict=True):
        assert mine.is_contiguous()
        assert_close(mine, theirs, scale=100.0)


def test_products_of_a_stack_on_cuda_are_bfloat16_if_that_is_chosen(monkeypatch):
    monkeypatch.setattr(dispatch, "device_type", lambda _: "cuda")
    x, weight = torch.randn(2, 3, 7), torch.randn(2, 5, 7)
    found = torch.vmap(with_bf16_products(linear, True), (0, 0, None))(x, weight, None)
    expected = (x.bfloat16() @ weight.bfloat16().mT).float()
    assert torch.equal(found, expected)
