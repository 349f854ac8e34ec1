"""Backbone: a model split into extractor and head."""

from __future__ import annotations

from torch import Tensor, nn

from pfl_fast.nn import replace_dropout


class Backbone(nn.Module):
    """Computes ``head(extractor(x))``; all tensor names start with ``extractor.`` or ``head.``.

    Attributes:
        extractor: module that maps ``[b, *input_shape]`` to features ``[b, K]``.
        head: module that maps features ``[b, K]`` to logits ``[b, C]``.
        feature_width: number of features K.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_width: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_width = feature_width

    def forward(self, x: Tensor) -> Tensor:
        """Maps inputs ``[b, *input_shape]`` to logits ``[b, C]``."""
        logits: Tensor = self.head(self.extractor(x))
        return logits


def cut_head(model: nn.Module, head: str, feature_width: int) -> Backbone:
    """Splits a model in place: its submodule ``head`` becomes the head, replaced by an identity in the extractor.

    Replaces dropout by seeded dropout. Assumes that the head is the model's last layer; :func:`split` checks it.
    """
    head_module = model.get_submodule(head)
    model.set_submodule(head, nn.Identity())
    backbone = Backbone(model, head_module, feature_width)
    replace_dropout(backbone)
    return backbone
