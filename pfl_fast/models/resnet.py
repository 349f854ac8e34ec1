"""ResNet-18 with the 7x7 stride-2 stem for every input size, as in the papers."""

from __future__ import annotations

from pfl_fast.models.base import Backbone
from pfl_fast.models.from_torchvision import from_torchvision


def resnet18(input_shape: tuple[int, ...], classes: int, *, pretrained: bool = False) -> Backbone:
    """Builds torchvision's ResNet-18 with its ``fc`` as head, 512 features.

    Args:
        input_shape: ``(c, h, w)``.
        classes: number of classes.
        pretrained: whether torchvision downloads weights pretrained on ImageNet.
    """
    return from_torchvision("resnet18", input_shape, classes, pretrained, stem="conv1", head="fc")
