"""Groups of tensors for PartialFed, which loads each group either from the global or from the local model."""

from __future__ import annotations

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models.base import Backbone
from pfl_fast.models.normalisation import batch_norm_tensors

GRANULARITIES = ("stage", "block", "layer")
_STAGES = ("layer1", "layer2", "layer3", "layer4")


def tensor_groups(backbone: Backbone, granularity: str, merged: bool = False) -> dict[str, list[str]]:
    """Returns the tensor names of each group. Every tensor of the state dict is in exactly one group.

    Args:
        backbone: any model for ``"layer"``, a ResNet for the other granularities.
        granularity: ``"layer"`` for one group per layer with tensors (41 in ResNet-18); ``"block"`` for the stem, each
            residual block and fc (10); ``"stage"`` for s1 with the stem, s2, s3, s4 and fc (5).
        merged: whether a BatchNorm layer joins the group of the layer before it (21 layer groups in ResNet-18), and the
            stem the first block (9 block groups).

    >>> from pfl_fast.models.mlp import mlp
    >>> tensor_groups(mlp((2,), 2, hidden=3), "layer")
    {'extractor.fc1': ['extractor.fc1.weight', 'extractor.fc1.bias'], 'head': ['head.weight', 'head.bias']}
    """
    if granularity not in GRANULARITIES:
        hint = did_you_mean(granularity, GRANULARITIES)
        raise ConfigError(f"granularity must be one of {', '.join(GRANULARITIES)}, got {granularity!r}{hint}")
    if granularity != "layer" and not has_stages(backbone):
        raise ConfigError(
            f"granularity {granularity!r} needs a model with layer1 to layer4, such as resnet18; use 'layer'"
        )
    groups: dict[str, list[str]] = {}
    batch_norm = batch_norm_tensors(backbone) if merged else {}
    group = ""
    for name in backbone.state_dict():
        layer = name.rpartition(".")[0]
        if granularity != "layer":
            group = _resnet_group(layer.split("."), granularity)
            group = "s1.0" if merged and group == "stem" else group
        elif name not in batch_norm or not group:
            group = layer
        groups.setdefault(group, []).append(name)
    return groups


def has_stages(backbone: Backbone) -> bool:
    """Returns whether the extractor has the stages of a ResNet, layer1 to layer4."""
    return all(hasattr(backbone.extractor, stage) for stage in _STAGES)


def _resnet_group(path: list[str], granularity: str) -> str:
    if path[0] == "head":
        return "fc"
    stage = _STAGES.index(path[1]) + 1 if path[1] in _STAGES else 0
    if granularity == "stage":
        return f"s{max(stage, 1)}"
    return f"s{stage}.{path[2]}" if stage else "stem"
