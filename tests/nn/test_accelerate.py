import copy

import pytest
import torch
from torch import nn

from pfl_fast.nn import ConvReluPool, accelerate


def stage(*arguments, pool=2, **options):
    return [nn.Conv2d(*arguments, **options), nn.ReLU(inplace=True), nn.MaxPool2d(pool)]


def test_values_gradients_and_names_stay():
    plain = nn.Sequential(
        nn.Sequential(*stage(3, 8, 3, padding=1)), *stage(8, 16, 5), nn.Flatten(), nn.Linear(16 * 16, 4)
    )
    model, lines = copy.deepcopy(plain), []
    parameters = list(model.parameters())
    assert accelerate(model, lines.append) is model
    assert sorted(line.split(":")[0] for line in lines) == ["0.0", "1"]
    assert all("are one operator" in line for line in lines)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(own is other for own, other in zip(model.parameters(), parameters, strict=True))
    assert [type(layer) for layer in model[0]] == [ConvReluPool, nn.Identity, nn.Identity]
    x = torch.randn(5, 3, 24, 24)
    found, expected = copy.deepcopy(model)(x), plain(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    model(x).square().sum().backward()
    expected.square().sum().backward()
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (stage(16, 4, 3), "0: Conv2d(16, 4, 3) is left: torch is faster for 3 x 3 kernels over 16 channels"),
        (stage(1, 4, 5, stride=2), "is left: it needs a bias, stride 1"),
        (stage(1, 4, 5, bias=False), "is left: it needs a bias"),
        (stage(1, 4, 5, padding="same"), "is left: it needs a bias"),
        (stage(1, 4, (3, 5)), "is left: its kernel must be square"),
        (stage(1, 4, 5, pool=3), "0: Conv2d(1, 4, 5) is left: ReLU and MaxPool2d(2) do not follow"),
        ([nn.Conv2d(1, 4, 5), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)], "do not follow it"),
    ],
)
def test_other_convolutions_are_left_with_a_reason(layers, message):
    model, lines = nn.Sequential(*layers), []
    before = [type(layer) for layer in model]
    accelerate(model, lines.append)
    assert [type(layer) for layer in model] == before
    (line,) = lines
    assert message in line


def test_layers_with_hooks_are_left():
    model, lines, seen = nn.Sequential(*stage(1, 4, 5)), [], []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    accelerate(model, lines.append)
    model(torch.zeros(1, 1, 8, 8))
    assert seen
    assert "has hooks" in lines[0]
