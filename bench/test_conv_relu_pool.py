"""``conv_relu_pool`` in the stages of the CNN at MNIST's and CIFAR's sizes, batches of 10, and a whole training step.

Uses one thread, since the engine trains one client per core. Weights and the outputs of the first stage need gradients,
images do not. The engine's images are channels_last, for which torch's convolution of few channels is several times as
fast as for NCHW: compare with these rows.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.models.cnn import cnn
from pfl_fast.ops import reference

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES = {"MNIST": (1, 28, 28), "CIFAR": (3, 32, 32)}
STAGES = {
    "first of MNIST": ((1, 28, 28), 32),
    "first of CIFAR": ((3, 32, 32), 32),
    "second of MNIST": ((32, 12, 12), 64),
    "second of CIFAR": ((32, 14, 14), 64),
}
CLIENTS = {"one client": (), "20 clients": (20,)}
BATCH, KERNEL = 10, 5
each_size = pytest.mark.parametrize("images", IMAGES)
each_stage = pytest.mark.parametrize("stage", STAGES)
each_stack = pytest.mark.parametrize("clients", CLIENTS)


def layers(x, weight, bias):
    """Applies torch's layers; stacked clients one after another."""
    if x.dim() == 5:
        return torch.stack([layers(*tensors) for tensors in zip(x, weight, bias, strict=True)])
    return functional.max_pool2d(functional.relu(functional.conv2d(x, weight, bias)), 2)


def channels_last(tensor):
    """Returns a copy with channels_last strides even for one channel: torch selects its kernel by strides."""
    *batch, channels, height, width = tensor.shape
    return torch.empty(*batch, height, width, channels).movedim(-1, -3).copy_(tensor)


def make(stage, clients):
    (channels, height, width), outputs = STAGES[stage]
    stack = CLIENTS[clients]
    x = torch.randn(*stack, BATCH, channels, height, width)
    weight = 0.2 * torch.randn(*stack, outputs, channels, KERNEL, KERNEL) / channels**0.5
    grad = torch.randn(*stack, BATCH, outputs, (height - 4) // 2, (width - 4) // 2)
    return x, weight, 0.1 * torch.randn(*stack, outputs), grad


@each_stack
@each_stage
def test_conv_relu_pool_forward(race, stage, clients):
    x, weight, bias, _ = make(stage, clients)
    compiled = torch.compile(reference.conv_relu_pool, dynamic=False)
    last = channels_last(x), channels_last(weight), bias
    race(
        {
            "native": lambda: ops.conv_relu_pool(x, weight, bias),
            "plain layers": lambda: layers(x, weight, bias),
            "plain layers, channels_last": lambda: layers(*last),
            "torch.compile of the reference": lambda: compiled(x, weight, bias),
        },
        goals={"plain layers, channels_last": 1.0},
    )


@each_stack
@each_stage
def test_conv_relu_pool_forward_and_backward(race, stage, clients):
    x, weight, bias, grad = make(stage, clients)
    compiled = torch.compile(reference.conv_relu_pool, dynamic=False)

    def both(function, order):
        images, kernels, cotangent = order(x), order(weight).requires_grad_(), order(grad)
        wanted = [kernels, bias.clone().requires_grad_()]
        given = [images, *wanted]
        if stage.startswith("second"):
            wanted.append(images.requires_grad_())
        return lambda: torch.autograd.grad(function(*given), wanted, cotangent)

    race(
        {
            "native": both(ops.conv_relu_pool, channels_last),
            "plain layers": both(layers, torch.clone),
            "plain layers, channels_last": both(layers, channels_last),
            "torch.compile of the reference": both(compiled, torch.clone),
        },
        goals={"plain layers": 2.0, "plain layers, channels_last": 1.0},
    )


def plain_cnn(input_shape):
    """Returns the CNN built from torch's layers."""
    model = cnn(input_shape, 10)
    for name, sizes in {"conv1": (input_shape[0], 32), "conv2": (32, 64)}.items():
        stage = nn.Sequential(nn.Conv2d(*sizes, KERNEL), nn.ReLU(), nn.MaxPool2d(2))
        setattr(model.extractor, name, stage)
    return model


@each_size
def test_cnn_step(race, images):
    x, y = torch.randn(BATCH, *IMAGES[images]), torch.randint(10, (BATCH,))
    last = channels_last(x)

    def step(model, x):
        parameters = list(model.parameters())
        return lambda: torch.autograd.grad(functional.cross_entropy(model(x), y), parameters)

    race(
        {
            "cnn": step(cnn(IMAGES[images], 10), last),
            "plain layers": step(plain_cnn(IMAGES[images]), x),
            "plain layers, images channels_last": step(plain_cnn(IMAGES[images]), last),
            "plain layers, all channels_last": step(
                plain_cnn(IMAGES[images]).to(memory_format=torch.channels_last), last
            ),
        },
        goals={"plain layers, images channels_last": 1.5},
    )
