"""What every model is here: an extractor and a head, cut at a place the methods agree on."""

from __future__ import annotations

from torch import Tensor, nn

from pfl_fast.nn import replace_dropout


class Backbone(nn.Module):
    """``head(extractor(x))``; the names of all tensors start with ``extractor.`` or ``head.``.

    Attributes:
        extractor: ``[b, *input_shape] -> [b, K]``.
        head: ``[b, K] -> [b, C]`` logits.
        feature_width: K.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_width: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_width = feature_width

    def forward(self, x: Tensor) -> Tensor:
        """``[b, C]`` logits of ``[b, *input_shape]`` inputs."""
        logits: Tensor = self.head(self.extractor(x))
        return logits


def cut_head(model: nn.Module, head: str, feature_width: int) -> Backbone:
    """The model with the submodule ``head`` taken out and an identity in its place, in place and unchecked.

    Dropout becomes seeded. Only right if the head is the last thing the model does: :func:`split` checks that.
    """
    parent_name, _, name = head.rpartition(".")
    parent = model.get_submodule(parent_name)
    head_module = parent.get_submodule(name)
    setattr(parent, name, nn.Identity())
    backbone = Backbone(model, head_module, feature_width)
    replace_dropout(backbone)
    return backbone
