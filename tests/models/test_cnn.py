"""``cnn`` equals the papers' model written with plain torch layers."""

import pytest
import torch
from torch import nn

from pfl_fast.models.cnn import cnn
from pfl_fast.testing import assert_close


def plain_layers(channels, flat):
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Linear(flat, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


@pytest.mark.parametrize(("shape", "flat"), [((1, 28, 28), 1024), ((3, 32, 33), 1600)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_initial_values_logits_and_gradients_equal_the_plain_layers(shape, flat, memory_format):
    torch.manual_seed(0)
    model = cnn(shape, 10)
    torch.manual_seed(0)
    plain = plain_layers(shape[0], flat)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    x = torch.randn(4, *shape).contiguous(memory_format=memory_format)
    logits, expected = model(x), plain(x)
    assert_close(logits, expected)
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    for mine, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), plain.parameters()), strict=True):
        assert_close(mine, theirs, scale=10.0)


def test_names():
    layers = ["extractor.conv1", "extractor.conv2", "extractor.fc1", "head"]
    names = [f"{layer}.{tensor}" for layer in layers for tensor in ("weight", "bias")]
    assert list(cnn((1, 28, 28), 10).state_dict()) == names
