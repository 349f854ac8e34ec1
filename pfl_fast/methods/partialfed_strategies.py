"""What a client of PartialFed loads from the global model: the paper's manual strategies by name, or a function.

    full                          everything
    s1, s1-s2, s1-s3, s1-s4       stem and stages up to the named one
    fc, s4-fc, s3-fc, s2-fc       fc and stages down to the named one
    wo_bn, wo_bn_fc               all but BatchNorm; all but BatchNorm and fc
    AaBb, ABCD, abcd, ...         stem, fc and the named residual blocks: A is the first of stage 1, a its second
    wo_se, wo_se_bn               all but squeeze-and-excitation; all but that and BatchNorm
    wo_fb, wo_fb_tb               all but the first block of each stage; all but the first and the third

On models without stages there is full, s1-s4 (all but the head), fc (the head), wo_bn and wo_bn_fc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import nn

from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models import Backbone, batch_norm_tensors, find_object, has_stages, tensor_groups

Selector = Callable[[str, str], bool]  # (group, tensor) -> whether it is loaded
SQUEEZES = {"SqueezeExcitation", "SqueezeExcite", "SEModule", "SELayer", "SEBlock"}  # what libraries call that layer
PAPER_BLOCKS = ("AaBb", "AaCc", "BbCc", "BbDd", "CcDd", "ABCD", "abcd")


class Place(NamedTuple):
    """Where a tensor is: in which stage (0: the stem) and block, and in what kind of layer."""

    stage: int
    block: int
    fc: bool
    bn: bool
    se: bool


Rule = Callable[[Place], bool]
ANY_MODEL: Mapping[str, Rule] = {
    "full": lambda _: True,
    "s1-s4": lambda place: not place.fc,
    "fc": lambda place: place.fc,
    "wo_bn": lambda place: not place.bn,
    "wo_bn_fc": lambda place: not (place.bn or place.fc),
}
WITH_SQUEEZES: Mapping[str, Rule] = {
    "wo_se": lambda place: not place.se,
    "wo_se_bn": lambda place: not (place.se or place.bn),
}
WITH_STAGES: Mapping[str, Rule] = {
    "s1": lambda place: not place.fc and place.stage <= 1,
    "s1-s2": lambda place: not place.fc and place.stage <= 2,
    "s1-s3": lambda place: not place.fc and place.stage <= 3,
    "s4-fc": lambda place: place.fc or place.stage >= 4,
    "s3-fc": lambda place: place.fc or place.stage >= 3,
    "s2-fc": lambda place: place.fc or place.stage >= 2,
    "wo_fb": lambda place: place.fc or place.stage == 0 or place.block != 0,
    "wo_fb_tb": lambda place: place.fc or place.stage == 0 or place.block not in (0, 2),
}


def loaded(strategy: str | Selector, backbone: Backbone) -> set[str]:
    """Names in the model's state dict that are loaded from the global model; the client keeps its own of the others.

    Args:
        strategy: a name from the table above, ``"module:function"``, or the function: ``(group, tensor) -> bool``,
            where the group is ``"stem"``, a block such as ``"s2.0"`` or ``"fc"`` on models of ResNet's layout and the
            layer's name on others, and the tensor is named as in the state dict.
        backbone: the model.

    >>> from pfl_fast.models import build
    >>> model = build("mlp", input_shape=(2,), classes=2, hidden=[3])
    >>> sorted(loaded("fc", model)), sorted(loaded(lambda group, tensor: tensor.endswith("bias"), model))
    (['head.bias', 'head.weight'], ['extractor.fc1.bias', 'head.bias'])
    """
    groups = tensor_groups(backbone, "block" if has_stages(backbone) else "layer")
    if isinstance(strategy, str) and ":" not in strategy:
        rule, places = named(strategy, backbone), places_of(backbone, groups)
        return {tensor for tensor, place in places.items() if rule(place)}
    select: Selector = find_object(strategy, "strategy") if isinstance(strategy, str) else strategy
    if not callable(select):
        raise ConfigError(f"strategy {strategy!r} must be a function of (group, tensor), got {type(select).__name__}")
    return {tensor for group, tensors in groups.items() for tensor in tensors if select(group, tensor)}


def named(name: str, backbone: Backbone) -> Rule:
    """The strategy of that name, if this model can have it."""
    rules = dict(ANY_MODEL)
    if _squeezing(backbone):
        rules.update(WITH_SQUEEZES)
    if has_stages(backbone):
        rules.update(WITH_STAGES)
        rules.update({blocks: of_blocks(blocks) for blocks in PAPER_BLOCKS})
        if name not in rules and re.fullmatch("[A-Da-d]+", name):
            return of_blocks(name)
    if name in rules:
        return rules[name]
    hint = did_you_mean(name, rules)
    raise ConfigError(
        f"strategy {name!r} is none that this model can have{hint}; it can have {', '.join(rules)}, or a function of"
        f" (group, tensor) as 'module:function'"
    )


def of_blocks(letters: str) -> Rule:
    """Stem, fc and the named blocks.

    >>> of_blocks("Ab")(Place(stage=2, block=1, fc=False, bn=False, se=False))
    True
    """
    blocks = {("abcd".index(letter.lower()) + 1, int(letter.islower())) for letter in letters}
    return lambda place: place.fc or place.stage == 0 or (place.stage, place.block) in blocks


def places_of(backbone: Backbone, groups: Mapping[str, list[str]]) -> dict[str, Place]:
    """Where each tensor of the state dict is; ``groups`` are those of ``loaded``."""
    norms, squeezes = set(batch_norm_tensors(backbone)), _squeezing(backbone)
    places = {}
    for group, tensors in groups.items():
        found = re.fullmatch(r"s(\d)\.(\d+)", group) if has_stages(backbone) else None
        stage, block = (int(found[1]), int(found[2])) if found else (0, 0)
        for tensor in tensors:
            places[tensor] = Place(stage, block, tensor.startswith("head."), tensor in norms, tensor in squeezes)
    return places


def _squeezing(module: nn.Module) -> set[str]:
    """Tensors of squeeze-and-excitation, by the name of the layer's type, as several libraries have one."""
    found = set()
    for path, layer in module.named_modules():
        if any(kind.__name__ in SQUEEZES for kind in type(layer).__mro__):
            found |= {f"{path}.{name}" if path else name for name in layer.state_dict()}
    return found
