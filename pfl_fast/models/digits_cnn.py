"""The six-layer digits CNN of FedBN, split as in FediOS or FedPick."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pfl_fast.errors import ConfigError
from pfl_fast.models.base import Backbone
from pfl_fast.models.options import expect_one_of

_Layers = OrderedDict[str, nn.Module]


def digits_cnn(input_shape: tuple[int, ...], classes: int, *, cut: str = "fc", head: str = "stack") -> Backbone:
    """Builds three 5x5 convolutions and three linear layers, with BatchNorm and ReLU after all but the last.

    Args:
        input_shape: ``(c, h, w)``, h and w at least 4.
        classes: number of classes.
        cut: where the head starts: ``"fc"`` for the last linear layer, with 512 features (FediOS); ``"conv"`` for all
            linear layers, with the flattened output of the convolutions as features, 8192 for 32x32 (FedPick).
        head: head for ``cut="conv"``: ``"stack"`` (all linear layers) or ``"linear"`` (a single linear layer).

    >>> digits_cnn((3, 32, 32), 10, cut="conv", head="linear").head
    Linear(in_features=8192, out_features=10, bias=True)
    """
    expect_one_of("digits-cnn", "cut", cut, ("fc", "conv"))
    expect_one_of("digits-cnn", "head", head, ("stack", "linear"))
    if cut == "fc" and head == "linear":
        raise ConfigError("model 'digits-cnn': with cut='fc' the head is already linear; drop head, or set cut='conv'")
    channels, *size = input_shape
    flat = 128 * (size[0] // 4) * (size[1] // 4)
    conv = _convolutions(channels)
    if head == "linear":
        return Backbone(nn.Sequential(conv), nn.Linear(flat, classes), flat)
    hidden, last = _hidden(flat), nn.Linear(512, classes)
    if cut == "conv":
        return Backbone(nn.Sequential(conv), nn.Sequential(hidden | {"fc3": last}), flat)
    return Backbone(nn.Sequential(conv | hidden), last, 512)


def _convolutions(channels: int) -> _Layers:
    return OrderedDict(
        conv1=nn.Conv2d(channels, 64, 5, padding=2),
        bn1=nn.BatchNorm2d(64),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(64, 64, 5, padding=2),
        bn2=nn.BatchNorm2d(64),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(64, 128, 5, padding=2),
        bn3=nn.BatchNorm2d(128),
        relu3=nn.ReLU(),
        flatten=nn.Flatten(),
    )


def _hidden(flat: int) -> _Layers:
    return OrderedDict(
        fc1=nn.Linear(flat, 2048),
        bn4=nn.BatchNorm1d(2048),
        relu4=nn.ReLU(),
        fc2=nn.Linear(2048, 512),
        bn5=nn.BatchNorm1d(512),
        relu5=nn.ReLU(),
    )
