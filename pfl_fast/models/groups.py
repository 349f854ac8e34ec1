"""The parts of a model that PartialFed loads globally or locally as a whole."""

from __future__ import annotations

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models.base import Backbone
from pfl_fast.models.normalisation import batch_norm_tensors

GRANULARITIES = ("stage", "block", "layer")
_STAGES = ("layer1", "layer2", "layer3", "layer4")


def tensor_groups(backbone: Backbone, granularity: str, merged: bool = False) -> dict[str, list[str]]:
    """Group -> names in the state dict; every tensor is in exactly one group, and BatchNorm's buffers with its weights.

    Args:
        backbone: any model for ``"layer"``, one of ResNet's layout for the others.
        granularity: ``"layer"``: each layer that holds tensors (ResNet-18: 41); ``"block"``: stem, each residual block,
            fc (10); ``"stage"``: s1 with the stem, s2, s3, s4, fc (5).
        merged: a BatchNorm is one with the layer before it (ResNet-18: 21), the stem with the first block (9).

    >>> from pfl_fast.models.mlp import mlp
    >>> tensor_groups(mlp((2,), 2, hidden=3), "layer")
    {'extractor.fc1': ['extractor.fc1.weight', 'extractor.fc1.bias'], 'head': ['head.weight', 'head.bias']}
    """
    if granularity not in GRANULARITIES:
        hint = did_you_mean(granularity, GRANULARITIES)
        raise ConfigError(f"granularity must be one of {', '.join(GRANULARITIES)}, got {granularity!r}{hint}")
    if granularity != "layer" and not has_stages(backbone):
        raise ConfigError(
            f"granularity {granularity!r} needs a model with layer1 to layer4, such as resnet18; take 'layer'"
        )
    groups: dict[str, list[str]] = {}
    normalising = batch_norm_tensors(backbone) if merged else {}
    group = ""
    for name in backbone.state_dict():
        layer = name.rpartition(".")[0]
        if granularity != "layer":
            group = _resnet_group(layer.split("."), granularity)
            group = "s1.0" if merged and group == "stem" else group
        elif name not in normalising or not group:
            group = layer
        groups.setdefault(group, []).append(name)
    return groups


def has_stages(backbone: Backbone) -> bool:
    """Whether the model has ResNet's layout."""
    return all(hasattr(backbone.extractor, stage) for stage in _STAGES)


def _resnet_group(path: list[str], granularity: str) -> str:
    if path[0] == "head":
        return "fc"
    stage = _STAGES.index(path[1]) + 1 if path[1] in _STAGES else 0
    if granularity == "stage":
        return f"s{max(stage, 1)}"
    return f"s{stage}.{path[2]}" if stage else "stem"
