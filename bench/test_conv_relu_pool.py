"""The first stage of the CNN at MNIST's and CIFAR's sizes, batches of 10: one client, 20 clients stacked; and a step.

With one thread, as the engine has one client per core. The weights need gradients, the images do not. The engine's
images are channels_last, where torch's own convolution is several times as fast as on NCHW: the rows to compare with
are those, and a step, most of which is the second convolution, has little to gain over them.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from pfl_fast import ops
from pfl_fast.models.cnn import cnn
from pfl_fast.ops import reference

IMAGES = {"MNIST": (1, 28, 28), "CIFAR": (3, 32, 32)}
CLIENTS = {"one client": (), "20 clients": (20,)}
BATCH, OUTPUTS, KERNEL = 10, 32, 5
each_size = pytest.mark.parametrize("images", IMAGES)
each_stack = pytest.mark.parametrize("clients", CLIENTS)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def layers(x, weight, bias):
    """What people write; stacked clients one after the other."""
    if x.dim() == 5:
        return torch.stack([layers(*tensors) for tensors in zip(x, weight, bias, strict=True)])
    return functional.max_pool2d(functional.relu(functional.conv2d(x, weight, bias)), 2)


def channels_last(tensor):
    """A copy whose strides say so even where there is one channel: torch chooses its kernel by them."""
    *batch, channels, height, width = tensor.shape
    return torch.empty(*batch, height, width, channels).movedim(-1, -3).copy_(tensor)


def make(images, clients):
    channels, height, width = IMAGES[images]
    stack = CLIENTS[clients]
    x = torch.randn(*stack, BATCH, channels, height, width)
    weight = 0.2 * torch.randn(*stack, OUTPUTS, channels, KERNEL, KERNEL)
    grad = torch.randn(*stack, BATCH, OUTPUTS, (height - 4) // 2, (width - 4) // 2)
    return x, weight, 0.1 * torch.randn(*stack, OUTPUTS), grad


@each_stack
@each_size
def test_conv_relu_pool_forward(race, images, clients):
    x, weight, bias, _ = make(images, clients)
    compiled = torch.compile(reference.conv_relu_pool, dynamic=False)
    last = channels_last(x), channels_last(weight), bias
    race(
        {
            "native": lambda: ops.conv_relu_pool(x, weight, bias),
            "plain layers": lambda: layers(x, weight, bias),
            "plain layers, channels_last": lambda: layers(*last),
            "torch.compile of the reference": lambda: compiled(x, weight, bias),
        }
    )


@each_stack
@each_size
def test_conv_relu_pool_forward_and_backward(race, images, clients):
    x, weight, bias, grad = make(images, clients)
    compiled = torch.compile(reference.conv_relu_pool, dynamic=False)

    def both(function, order):
        images, kernels, cotangent = order(x), order(weight).requires_grad_(), order(grad)
        biases = bias.clone().requires_grad_()
        return lambda: torch.autograd.grad(function(images, kernels, biases), (kernels, biases), cotangent)

    race(
        {
            "native": both(ops.conv_relu_pool, channels_last),
            "plain layers": both(layers, torch.clone),
            "plain layers, channels_last": both(layers, channels_last),
            "torch.compile of the reference": both(compiled, torch.clone),
        },
        goals={"plain layers": 2.0},
    )


def plain_cnn(input_shape):
    """The same network of plain layers."""
    model = cnn(input_shape, 10)
    first = nn.Conv2d(input_shape[0], OUTPUTS, KERNEL)
    model.extractor.conv1 = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2))
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
        goals={"plain layers, images channels_last": 1.0},
    )
