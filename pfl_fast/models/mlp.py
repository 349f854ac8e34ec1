"""Multilayer perceptron, for features and for images too small for convolutions."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from pfl_fast.errors import ConfigError
from pfl_fast.models.base import Backbone
from pfl_fast.models.options import expect_positive


def mlp(input_shape: tuple[int, ...], classes: int, *, hidden: int | Sequence[int] = (128, 128)) -> Backbone:
    """Builds linear layers with ReLU on the flattened input.

    Args:
        input_shape: shape of one sample.
        classes: number of classes.
        hidden: widths of the hidden layers, the last one being the number of features; empty for a linear model.

    >>> mlp((1, 8, 8), 10, hidden=[32, 16]).feature_width
    16
    """
    if isinstance(hidden, str) or not isinstance(hidden, (int, Sequence)):
        raise ConfigError(f"model 'mlp': hidden must be a list of widths such as [128, 128], got {hidden!r}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = math.prod(input_shape)
    for number, size in enumerate([hidden] if isinstance(hidden, int) else hidden, start=1):
        expect_positive("mlp", "hidden", size)
        layers[f"fc{number}"] = nn.Linear(width, size)
        layers[f"relu{number}"] = nn.ReLU()
        width = size
    return Backbone(nn.Sequential(layers), nn.Linear(width, classes), width)
