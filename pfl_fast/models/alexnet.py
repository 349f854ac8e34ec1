"""AlexNet with BatchNorm and without dropout, as in FedBN (Office-Caltech-10, DomainNet)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pfl_fast.models.base import Backbone
from pfl_fast.models.options import expect_one_of


def alexnet(input_shape: tuple[int, ...], classes: int, *, cut: str = "relu7") -> Backbone:
    """Builds five convolutions and three linear layers, with BatchNorm and ReLU after all but the last.

    Args:
        input_shape: ``(c, h, w)``, h and w at least 63.
        classes: number of classes.
        cut: where the head starts: ``"relu7"`` for the last linear layer, ``"fc6"`` for the last two. Both have 4096
            features.
    """
    expect_one_of("alexnet", "cut", cut, ("relu7", "fc6"))
    convolutions: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(input_shape[0], 64, 11, stride=4, padding=2),
        bn1=nn.BatchNorm2d(64),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(3, 2),
        conv2=nn.Conv2d(64, 192, 5, padding=2),
        bn2=nn.BatchNorm2d(192),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(3, 2),
        conv3=nn.Conv2d(192, 384, 3, padding=1),
        bn3=nn.BatchNorm2d(384),
        relu3=nn.ReLU(),
        conv4=nn.Conv2d(384, 256, 3, padding=1),
        bn4=nn.BatchNorm2d(256),
        relu4=nn.ReLU(),
        conv5=nn.Conv2d(256, 256, 3, padding=1),
        bn5=nn.BatchNorm2d(256),
        relu5=nn.ReLU(),
        pool5=nn.MaxPool2d(3, 2),
        average=nn.AdaptiveAvgPool2d(6),
        flatten=nn.Flatten(),
    )
    sixth: OrderedDict[str, nn.Module] = OrderedDict(
        fc6=nn.Linear(256 * 6 * 6, 4096), bn6=nn.BatchNorm1d(4096), relu6=nn.ReLU()
    )
    seventh: OrderedDict[str, nn.Module] = OrderedDict(
        fc7=nn.Linear(4096, 4096), bn7=nn.BatchNorm1d(4096), relu7=nn.ReLU()
    )
    last = nn.Linear(4096, classes)
    if cut == "fc6":
        return Backbone(nn.Sequential(convolutions | sixth), nn.Sequential(seventh | {"fc8": last}), 4096)
    return Backbone(nn.Sequential(convolutions | sixth | seventh), last, 4096)
