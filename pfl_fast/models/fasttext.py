"""fastText for token sequences (AG News)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from pfl_fast.models.base import Backbone
from pfl_fast.models.options import expect_positive


class MeanEmbedding(nn.Module):
    """Applies a linear layer to the mean of the embeddings over all positions; padding (token 0) counts as zeros."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.linear = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps int32 or int64 tokens ``[b, L]`` to features ``[b, width]``."""
        # Padding is masked here: under vmap torch's embedding applies padding_idx to the first client only.
        embedded = embedding(tokens, self.embedding.weight)
        features: Tensor = self.linear(torch.where(tokens.unsqueeze(-1) != 0, embedded, 0.0).mean(-2))
        return features


def fasttext(input_shape: tuple[int, ...], classes: int, vocabulary: int, *, width: int = 32) -> Backbone:  # noqa: ARG001
    """Builds a mean embedding and a linear layer, without activation.

    Args:
        input_shape: ``(L,)``, any length.
        classes: number of classes.
        vocabulary: number of tokens, including the padding token 0.
        width: width of the embedding and number of features.

    >>> sum(p.numel() for p in fasttext((200,), 4, 98635).parameters())
    3157508
    """
    expect_positive("fasttext", "width", width)
    return Backbone(MeanEmbedding(vocabulary, width), nn.Linear(width, classes), width)
