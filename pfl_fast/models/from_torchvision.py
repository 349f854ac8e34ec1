"""Backbones from torchvision's models; torchvision is imported on first use."""

from __future__ import annotations

import http.client
from typing import Any, TypeVar

import torch
from torch import nn

from pfl_fast.errors import ConfigError
from pfl_fast.models.base import Backbone, cut_head
from pfl_fast.models.options import expect_bool

_Layer = TypeVar("_Layer", bound=nn.Module)


def from_torchvision(
    name: str, stem: str, head: str, input_shape: tuple[int, ...], classes: int, *, pretrained: bool = False
) -> Backbone:
    """Builds a model of ``torchvision.models`` for any number of channels and classes.

    Args:
        name: name of the model: torchvision's with ``-`` for ``_``.
        stem: name of the first convolution, which is replaced unless there are 3 channels.
        head: name of the last linear layer; the dropout before it belongs to the extractor.
        input_shape: ``(c, h, w)``; c must be 3 if pretrained.
        classes: number of classes.
        pretrained: whether to load torchvision's default ImageNet weights; the head is reinitialised.
    """
    channels, function = input_shape[0], name.replace("-", "_")
    expect_bool(name, "pretrained", pretrained)
    if pretrained and channels != 3:
        raise ConfigError(
            f"model {name!r}: the pretrained weights are for 3 channels, the input has {channels}; set pretrained=false"
        )
    models = import_models(name)
    if pretrained:
        model = _download(name, models, function)
        model.set_submodule(head, nn.Linear(_layer(model, head, nn.Linear).in_features, classes))
    else:
        model = getattr(models, function)(num_classes=classes)
    if channels != 3:
        model.set_submodule(stem, _new_stem(_layer(model, stem, nn.Conv2d), channels))
    return cut_head(model, head, _layer(model, head, nn.Linear).in_features)


def import_models(name: str) -> Any:
    """Imports ``torchvision.models``; raises ConfigError with the remedy if the import fails."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"model {name!r} needs torchvision, which cannot be imported ({reason}); pip install the torchvision"
            f" release for torch {torch.__version__}, or choose a model without it: cnn, digits-cnn, alexnet, mlp"
        ) from error
    return models


def _download(name: str, models: Any, function: str) -> nn.Module:
    try:
        model: nn.Module = getattr(models, function)(weights="DEFAULT")
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise ConfigError(
            f"model {name!r}: the pretrained weights cannot be downloaded or read ({error}); check the network, or put"
            f" torchvision's file into {torch.hub.get_dir()}/checkpoints, or set pretrained=false"
        ) from error
    return model


def _layer(model: nn.Module, path: str, layer_class: type[_Layer]) -> _Layer:
    layer = model.get_submodule(path)
    assert isinstance(layer, layer_class)
    return layer


def _new_stem(old: nn.Conv2d, channels: int) -> nn.Conv2d:
    (kernel, _), (stride, _), padding = old.kernel_size, old.stride, int(old.padding[0])
    new = nn.Conv2d(channels, old.out_channels, kernel, stride, padding, bias=False)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new
