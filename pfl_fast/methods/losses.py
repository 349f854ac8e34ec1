"""Losses that methods share."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy of ``[b, C]`` logits and ``[b]`` labels.

    As ``torch.nn.functional.cross_entropy`` without labels to ignore: for a stack of clients torch makes a dozen more
    operators of those.

    >>> import torch
    >>> cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor(0.6931)
    """
    return -F.log_softmax(logits, dim=-1).gather(-1, y[:, None]).mean()
