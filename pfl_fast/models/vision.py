"""Models of torchvision; the dropout before their last linear layer belongs to the extractor."""

from __future__ import annotations

from pfl_fast.models.base import Backbone
from pfl_fast.models.from_torchvision import from_torchvision


def resnet18(input_shape: tuple[int, ...], classes: int, *, pretrained: bool = False) -> Backbone:
    """Builds torchvision's ResNet-18, 512 features, with the 7x7 stride-2 stem for every input size, as in the papers.

    Args:
        input_shape: ``(c, h, w)``.
        classes: number of classes.
        pretrained: whether torchvision downloads weights pretrained on ImageNet.
    """
    return from_torchvision("resnet18", input_shape, classes, pretrained, stem="conv1", head="fc")


def mobilenet_v2(input_shape: tuple[int, ...], classes: int, *, pretrained: bool = False) -> Backbone:
    """Builds torchvision's MobileNetV2, 1280 features; ``input_shape`` is ``(c, h, w)``."""
    return from_torchvision("mobilenet-v2", input_shape, classes, pretrained, stem="features.0.0", head="classifier.1")


def efficientnet_b0(input_shape: tuple[int, ...], classes: int, *, pretrained: bool = False) -> Backbone:
    """Builds torchvision's EfficientNet-B0, 1280 features; ``input_shape`` is ``(c, h, w)``."""
    return from_torchvision(
        "efficientnet-b0", input_shape, classes, pretrained, stem="features.0.0", head="classifier.1"
    )


def densenet121(input_shape: tuple[int, ...], classes: int, *, pretrained: bool = False) -> Backbone:
    """Builds torchvision's DenseNet121, 1024 features; ``input_shape`` is ``(c, h, w)``, h and w at least 29."""
    return from_torchvision("densenet121", input_shape, classes, pretrained, stem="features.conv0", head="classifier")
