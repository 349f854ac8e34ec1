"""Tensors that clients of PartialFed load from the global model: the paper's strategies by name, or a function.

    full                          all tensors
    s1, s1-s2, s1-s3, s1-s4       stem and stages up to the named one
    fc, s4-fc, s3-fc, s2-fc       fc and stages down to the named one
    wo_bn, wo_bn_fc               all except BatchNorm; all except BatchNorm and fc
    AaBb, ABCD, abcd, ...         stem, fc and the named residual blocks: A is the first of stage 1, a its second
    wo_se, wo_se_bn               all except squeeze-and-excitation; all except it and BatchNorm
    wo_fb, wo_fb_tb               all except the first block of each stage; all except the first and third

Models without stages support full, s1-s4 (all except the head), fc (the head), wo_bn and wo_bn_fc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import nn

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models import Backbone, batch_norm_tensors, find_object, has_stages, tensor_groups

Selector = Callable[[str, str], bool]  # (group, tensor) -> True if the tensor is loaded
SQUEEZES = {"SqueezeExcitation", "SqueezeExcite", "SEModule", "SELayer", "SEBlock"}  # class names in common libraries
PAPER_BLOCKS = ("AaBb", "AaCc", "BbCc", "BbDd", "CcDd", "ABCD", "abcd")


class Position(NamedTuple):
    """Position of a tensor: stage (0: the stem), block, and whether its layer is fc, BatchNorm or SE."""

    stage: int
    block: int
    fc: bool
    bn: bool
    se: bool


Rule = Callable[[Position], bool]
ANY_MODEL: Mapping[str, Rule] = {
    "full": lambda _: True,
    "s1-s4": lambda position: not position.fc,
    "fc": lambda position: position.fc,
    "wo_bn": lambda position: not position.bn,
    "wo_bn_fc": lambda position: not (position.bn or position.fc),
}
WITH_SQUEEZES: Mapping[str, Rule] = {
    "wo_se": lambda position: not position.se,
    "wo_se_bn": lambda position: not (position.se or position.bn),
}
WITH_STAGES: Mapping[str, Rule] = {
    "s1": lambda position: not position.fc and position.stage <= 1,
    "s1-s2": lambda position: not position.fc and position.stage <= 2,
    "s1-s3": lambda position: not position.fc and position.stage <= 3,
    "s4-fc": lambda position: position.fc or position.stage >= 4,
    "s3-fc": lambda position: position.fc or position.stage >= 3,
    "s2-fc": lambda position: position.fc or position.stage >= 2,
    "wo_fb": lambda position: position.fc or position.stage == 0 or position.block != 0,
    "wo_fb_tb": lambda position: position.fc or position.stage == 0 or position.block not in (0, 2),
}


def loaded(strategy: str | Selector, backbone: Backbone) -> set[str]:
    """Returns the names in the model's state dict that are loaded from the global model.

    Args:
        strategy: name in the table above, ``"module:function"``, or a function ``(group, tensor) -> bool``. The
            group is ``"stem"``, a block such as ``"s2.0"`` or ``"fc"`` in a ResNet, and the layer's name in other
            models; the tensor is a name in the state dict.
        backbone: model.

    >>> from pfl_fast.models import build
    >>> model = build("mlp", input_shape=(2,), classes=2, hidden=[3])
    >>> sorted(loaded("fc", model)), sorted(loaded(lambda group, tensor: tensor.endswith("bias"), model))
    (['head.bias', 'head.weight'], ['extractor.fc1.bias', 'head.bias'])
    """
    groups = tensor_groups(backbone, "block" if has_stages(backbone) else "layer")
    if isinstance(strategy, str) and ":" not in strategy:
        rule, positions = named_rule(strategy, backbone), positions_of(backbone, groups)
        return {tensor for tensor, position in positions.items() if rule(position)}
    select: Selector = find_object(strategy, "strategy") if isinstance(strategy, str) else strategy
    if not callable(select):
        raise ConfigError(f"strategy {strategy!r} must be a function of (group, tensor), got {type(select).__name__}")
    return {tensor for group, tensors in groups.items() for tensor in tensors if select(group, tensor)}


def named_rule(name: str, backbone: Backbone) -> Rule:
    """Returns the strategy ``name``, if the model supports it."""
    rules = dict(ANY_MODEL)
    if _squeeze_tensors(backbone):
        rules.update(WITH_SQUEEZES)
    if has_stages(backbone):
        rules.update(WITH_STAGES)
        rules.update({blocks: block_rule(blocks) for blocks in PAPER_BLOCKS})
        if name not in rules and re.fullmatch("[A-Da-d]+", name):
            return block_rule(name)
    if name in rules:
        return rules[name]
    hint = did_you_mean(name, rules)
    raise ConfigError(
        f"strategy: this model has no strategy {name!r}{hint}; choose one of {', '.join(rules)}, or a function of "
        f"(group, tensor) as 'module:function'"
    )


def block_rule(letters: str) -> Rule:
    """Returns the strategy that loads stem, fc and the named blocks.

    >>> block_rule("Ab")(Position(stage=2, block=1, fc=False, bn=False, se=False))
    True
    """
    blocks = {("abcd".index(letter.lower()) + 1, int(letter.islower())) for letter in letters}
    return lambda position: position.fc or position.stage == 0 or (position.stage, position.block) in blocks


def positions_of(backbone: Backbone, groups: Mapping[str, list[str]]) -> dict[str, Position]:
    """Returns the position of each tensor of the state dict; ``groups`` as in ``loaded``."""
    norms, squeezes = set(batch_norm_tensors(backbone)), _squeeze_tensors(backbone)
    positions = {}
    for group, tensors in groups.items():
        found = re.fullmatch(r"s(\d)\.(\d+)", group) if has_stages(backbone) else None
        stage, block = (int(found[1]), int(found[2])) if found else (0, 0)
        for tensor in tensors:
            positions[tensor] = Position(stage, block, tensor.startswith("head."), tensor in norms, tensor in squeezes)
    return positions


def _squeeze_tensors(module: nn.Module) -> set[str]:
    """Returns the tensors of squeeze-and-excitation layers, found by class name."""
    found = set()
    for path, layer in module.named_modules():
        if any(base.__name__ in SQUEEZES for base in type(layer).__mro__):
            found |= {f"{path}.{name}" if path else name for name in layer.state_dict()}
    return found
