"""The 4-layer CNN of FedAvg and the papers that follow it (MNIST, CIFAR, Tiny-ImageNet)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pfl_fast.models.base import Backbone
from pfl_fast.nn import ConvReluPool

FEATURES = 512


def cnn(input_shape: tuple[int, ...], classes: int) -> Backbone:
    """Builds two 5x5 convolutions, each with ReLU and max-pooling, and a hidden layer of 512 features.

    Args:
        input_shape: ``(c, h, w)``, h and w at least 16.
        classes: number of classes.

    >>> sum(p.numel() for p in cnn((1, 28, 28), 10).parameters())
    582026
    """
    channels, *size = input_shape
    height, width = (((side - 4) // 2 - 4) // 2 for side in size)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=ConvReluPool(channels, 32, 5),
        conv2=ConvReluPool(32, 64, 5),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * height * width, FEATURES),
        relu3=nn.ReLU(),
    )
    return Backbone(nn.Sequential(layers), nn.Linear(FEATURES, classes), FEATURES)
