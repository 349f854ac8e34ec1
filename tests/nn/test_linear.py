import pytest
import torch
from torch import nn

from pfl_fast.nn import Linear, LinearCalls, replace_linear


def layer_and_twin(bias=True):
    torch.manual_seed(2)
    twin = nn.Linear(5, 3, bias=bias)
    layer = Linear(5, 3, bias=bias)
    layer.load_state_dict(twin.state_dict())
    return layer, twin


def weight_gradient(loss, layer):
    """The sum of the calls' products."""
    grads = torch.autograd.grad(loss, [call.y for call in layer.notes.calls])
    return sum(dy.t() @ call.x for dy, call in zip(grads, layer.notes.calls, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_calls_give_the_gradient_of_the_weight(bias, tracked):
    layer, twin = layer_and_twin(bias)
    x = torch.randn(4, 5, requires_grad=tracked)
    layer.notes = LinearCalls(open=True)
    mine = (layer(x) ** 2).sum() + layer(2 * x).exp().sum()
    theirs = (twin(x) ** 2).sum() + twin(2 * x).exp().sum()
    torch.testing.assert_close(mine, theirs)
    expected = torch.autograd.grad(theirs, [twin.weight, *([x] if tracked else [])])
    torch.testing.assert_close(weight_gradient(mine, layer), expected[0])


def test_the_other_gradients_are_autograds():
    layer, twin = layer_and_twin()
    x = torch.randn(4, 5, requires_grad=True)
    layer.notes = LinearCalls(open=True)
    mine = torch.autograd.grad((layer(x) ** 2).sum(), [layer.weight, layer.bias, x], allow_unused=True)
    theirs = torch.autograd.grad((twin(x) ** 2).sum(), [twin.weight, twin.bias, x])
    assert mine[0] is None
    torch.testing.assert_close(mine[1:], theirs[1:])


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_done_to_the_result_in_place_does_not_matter(bias):
    layer, twin = layer_and_twin(bias)
    x = torch.randn(4, 5)
    layer.notes = LinearCalls(open=True)
    mine, theirs = (torch.relu_(used(x).mul_(3)).sum() for used in (layer, twin))
    torch.testing.assert_close(weight_gradient(mine, layer), torch.autograd.grad(theirs, twin.weight)[0])


def test_nothing_is_noted_where_autograd_is_needed_or_nobody_trains():
    layer, _ = layer_and_twin()
    x = torch.randn(4, 5)
    layer(x)
    assert layer.notes is None
    layer.notes = LinearCalls(open=True)
    with torch.no_grad():
        layer(x)
    layer(x[0])
    layer(x[None])
    torch.func.functional_call(layer, {"weight": 2 * layer.weight}, (x,))
    layer.weight.requires_grad_(False)
    layer(x)
    layer.weight.requires_grad_(True)
    layer.notes.open = False
    layer(x)
    assert layer.notes.calls == []


def test_replacing_keeps_everything_but_the_class():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.Linear(4, 3, bias=False), Own(3, 2))).eval()
    before, x = dict(model.named_parameters()), torch.randn(2, 5)
    expected = model(x)
    replace_linear(model)
    assert [type(m) for m in (model[0], model[1][0], model[1][1])] == [Linear, Linear, Own]
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    assert not model[0].training
    torch.testing.assert_close(model(x), expected)
