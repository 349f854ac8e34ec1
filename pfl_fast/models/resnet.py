"""ResNet-18 with the 7x7 stride-2 stem, whatever the size of the input, as the papers use it."""

from __future__ import annotations

from pfl_fast.models.base import Backbone
from pfl_fast.models.from_torchvision import from_torchvision


def resnet18(input_shape: tuple[int, ...], classes: int, *, pretrained: bool = False) -> Backbone:
    """Torchvision's ResNet-18; the head is its ``fc``, K = 512.

    Args:
        input_shape: ``(c, h, w)``.
        classes: C.
        pretrained: on ImageNet; downloaded by torchvision.
    """
    return from_torchvision(
        "resnet18",
        "resnet18",
        channels=input_shape[0],
        classes=classes,
        stem="conv1",
        head="fc",
        pretrained=pretrained,
    )
