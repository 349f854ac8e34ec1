"""One client's model as a module: a copy of every part, and the method's prediction."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Method, Tensors


class ClientModel(nn.Module):
    """One client's model, on the CPU. It can be pickled, and keeps nothing of the experiment that it comes from.

    Attributes:
        client: the client's parts, as submodules.
        method: the method, whose ``predict`` combines them.
    """

    def __init__(self, method: Method, part_table: PartTable, tensors: Tensors) -> None:
        super().__init__()
        self.client = part_table.new_client(torch.device("cpu"))
        names = set(self.client.state_dict())
        self.client.load_state_dict({name: t.cpu() for name, t in tensors.items() if name in names})
        self.method = copy(method)
        # The two functions belong to the data and the initial model; predictions use neither.
        self.method.context = replace(method.context, count_classes=None, redrawn=None)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``[b, C]`` logits of ``[b, ...]`` samples."""
        labels = x.new_zeros(x.shape[0], dtype=torch.int64)
        return self.method.predict(self.client, Batch(x, labels, torch.tensor(0)))
