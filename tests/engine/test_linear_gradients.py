"""SGD steps by factored gradients, compared with autograd's gradients."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from pfl_fast.engine.local.linear_gradients import LinearGradients
from pfl_fast.methods.base import Batch, Client
from pfl_fast.nn import replace_linear

LR, DECAY = 0.1, 0.3


def client():
    torch.manual_seed(5)
    extractor = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 4, bias=False))
    return Client({"extractor": extractor, "head": nn.Linear(4, 3)}).double()


def cross_entropy(client, batch):
    return F.cross_entropy(client.head(client.extractor(batch.x)), batch.y), {}


def head_twice(client, batch):
    h = client.extractor(batch.x)
    return F.cross_entropy(client.head(h), batch.y) + client.head(h.detach() ** 2).square().mean(), {}


def with_weight_penalty(client, batch):
    """Uses the head's weight in its layer and in a penalty."""
    return cross_entropy(client, batch)[0] + client.head.weight.square().sum(), {}


def without_the_extractor(client, batch):
    return F.cross_entropy(client.head(batch.x[:, :4]), batch.y), {}


def batch():
    torch.manual_seed(6)
    return Batch(torch.randn(7, 6).double(), torch.randint(3, (7,)), torch.tensor(0))


@pytest.mark.parametrize("loss", [cross_entropy, head_twice, with_weight_penalty, without_the_extractor])
@pytest.mark.parametrize("trained", [("extractor", "head"), ("head",)])
def test_a_step_by_factors_equals_a_step_by_dense_gradients(loss, trained):
    mine, theirs = client(), client()
    replace_linear(mine)
    layers = LinearGradients(mine)
    parameters = {name: p for name, p in mine.named_parameters() if name.split(".")[0] in trained}
    dense, factors = layers.gradients(layers.record(loss, mine, batch())[0], parameters)
    expected = torch.autograd.grad(
        loss(theirs, batch())[0], [theirs.get_parameter(name) for name in parameters], allow_unused=True
    )
    assert not set(dense) & set(factors)
    for (name, parameter), gradient in zip(parameters.items(), expected, strict=True):
        if gradient is None:
            assert name not in {*dense, *factors}
            continue
        found = layers.product(name, factors[name]) if name in factors else dense[name]
        torch.testing.assert_close(found, gradient)
        if name in factors:
            stepped = parameter.detach().clone()
            factors[name].sgd_step_(stepped, stepped, LR, DECAY)
            torch.testing.assert_close(stepped, parameter - LR * (gradient + DECAY * parameter))
            elsewhere = torch.empty_like(stepped)
            factors[name].sgd_step_(elsewhere, parameter.detach(), LR, DECAY)
            assert torch.equal(elsewhere, stepped)


def test_which_gradients_have_factors():
    mine = client()
    replace_linear(mine)
    layers, parameters = LinearGradients(mine), dict(mine.named_parameters())
    _, factors = layers.gradients(layers.record(cross_entropy, mine, batch())[0], parameters)
    assert set(factors) == {"extractor.0.weight", "extractor.2.weight", "head.weight"}
    _, factors = layers.gradients(layers.record(with_weight_penalty, mine, batch())[0], parameters)
    assert set(factors) == {"extractor.0.weight", "extractor.2.weight"}


def test_products_reuse_memory_and_no_call_keeps_the_graph():
    mine = client()
    replace_linear(mine)
    layers, parameters = LinearGradients(mine), dict(mine.named_parameters())
    addresses = []
    for _ in range(2):
        _, factors = layers.gradients(layers.record(cross_entropy, mine, batch())[0], parameters)
        addresses.append(layers.product("head.weight", factors["head.weight"]).data_ptr())
    assert addresses[0] == addresses[1]
    assert layers.recorder.calls == []
    assert not layers.recorder.enabled


def test_an_error_in_the_loss_ends_recording():
    mine = client()
    replace_linear(mine)
    layers = LinearGradients(mine)
    with pytest.raises(RuntimeError):
        layers.record(cross_entropy, mine, Batch(torch.randn(7, 5).double(), torch.zeros(7).long(), torch.tensor(0)))
    assert not layers.recorder.enabled


def test_changing_a_recorded_input_in_place_before_backward_is_an_error():
    def loss(client, batch):
        h = client.extractor(batch.x)
        out = client.head(h).sum()
        h.add_(1.0)
        return out, {}

    mine = client()
    replace_linear(mine)
    layers = LinearGradients(mine)
    value, _ = layers.record(loss, mine, batch())
    with pytest.raises(RuntimeError, match=r"input \[7, 4\] of Linear.* was changed in place"):
        layers.gradients(value, dict(mine.named_parameters()))
