"""Clients stacked with vmap and single clients train alike: same logits, gradients and running statistics."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_fast.models import build
from pfl_fast.nn import seed_dropout, seed_names
from tests.models.conftest import named

CLIENTS = 3


def check(clients, x, y):
    """Compares one training step of single clients with one step of all of them stacked."""
    template = copy.deepcopy(clients[0])
    params, buffers = torch.func.stack_module_state(clients)
    seeds = torch.tensor([5, 6, 2**61 + 3][: len(clients)])
    for name in seed_names(template):
        buffers[name] = seeds.clone()

    def forward(params, buffers, x):
        return torch.func.functional_call(template, (params, buffers), (x,))

    logits = torch.vmap(forward)(params, buffers, x)
    sum(cross_entropy(logits[c], y[c]) for c in range(len(clients))).backward()
    for c, client in enumerate(clients):
        before = {name: buffer.clone() for name, buffer in client.named_buffers()}
        seed_dropout(client, int(seeds[c]))
        alone = client(x[c])
        cross_entropy(alone, y[c]).backward()
        torch.testing.assert_close(logits[c], alone, rtol=1e-6, atol=1e-8)
        for name, parameter in client.named_parameters():
            torch.testing.assert_close(params[name].grad[c], parameter.grad, rtol=1e-5, atol=1e-7, msg=name)
        for name, buffer in client.named_buffers():
            torch.testing.assert_close(buffers[name][c], buffer, rtol=1e-6, atol=1e-8, msg=name)
            if name.endswith("running_mean"):
                assert not torch.equal(before[name], buffer)
            if name.endswith("num_batches_tracked"):
                assert buffer == before[name] + 1


@pytest.mark.parametrize(
    ("name", "input_shape", "options"),
    [
        named("cnn", (3, 16, 17), {}),
        named("digits-cnn", (3, 8, 8), {}),
        named("digits-cnn", (1, 4, 5), {"cut": "conv"}),
        named("digits-cnn", (3, 8, 8), {"cut": "conv", "head": "linear"}),
        named("mlp", (2, 3), {}),
        named("mlp", (7,), {"hidden": []}),
        named("resnet18", (3, 17, 16), {}),
        named("mobilenet-v2", (3, 8, 8), {}),
        named("efficientnet-b0", (3, 8, 8), {}),
        named("densenet121", (3, 29, 29), {}),
    ],
)
def test_images_and_features(name, input_shape, options):
    torch.manual_seed(0)
    size = CLIENTS if name in {"cnn", "digits-cnn", "mlp"} else 2
    clients = [build(name, input_shape=input_shape, classes=4, seed=s, **options).double() for s in range(size)]
    check(clients, torch.randn(size, 5, *input_shape, dtype=torch.float64), torch.randint(0, 4, (size, 5)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_text(dtype):
    torch.manual_seed(0)
    clients = [build("fasttext", input_shape=(7,), classes=4, vocabulary=11, seed=s).double() for s in range(CLIENTS)]
    tokens = torch.randint(0, 11, (CLIENTS, 5, 7), dtype=dtype)
    check(clients, tokens, torch.randint(0, 4, (CLIENTS, 5)))
    assert all(torch.equal(c.extractor.embedding.weight.grad[0], torch.zeros(32, dtype=torch.float64)) for c in clients)


def test_convolutions_of_alexnet():
    """Omits the linear layers: they are too large for a quick test, and other models cover their kind."""
    torch.manual_seed(0)
    with torch.device("meta"):
        layers = build("alexnet", input_shape=(3, 63, 63), classes=4).extractor
    layers = nn.Sequential(*[layer for name, layer in layers.named_children() if name[-1] not in "67"])
    clients = []
    for _ in range(2):
        client = copy.deepcopy(layers).to_empty(device="cpu")
        for layer in client.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        clients.append(client.double())
    check(clients, torch.randn(2, 3, 3, 63, 63, dtype=torch.float64), torch.randint(0, 4, (2, 3)))
