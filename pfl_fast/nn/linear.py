"""The fully connected layer of clients that train with few samples at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.ops.linear import is_for_torch


class Linear(nn.Linear):
    """``nn.Linear`` by :func:`pfl_fast.ops.linear`; fast where there are few rows. Its gradient is taken once.

    It has the parameters of ``nn.Linear``, of the same names and initial values. Under autocast, and for anything but
    rows of floating-point numbers, it does what ``nn.Linear`` does.

    >>> Linear(784, 200)(torch.randn(10, 784)).shape
    torch.Size([10, 200])
    """

    def forward(self, x: Tensor) -> Tensor:
        """``[b, out_features]`` for ``[b, in_features]``."""
        if is_for_torch(x, self.weight) or x.dim() != 2 or not x.is_floating_point():
            return super().forward(x)
        if torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return ops.linear(x, self.weight, self.bias)


def replace_linear(module: nn.Module) -> nn.Module:
    """Swaps every plain ``nn.Linear`` for a :class:`Linear` with the same parameters.

    Subclasses, and layers with hooks or anything of their own, stay as they are. The module is changed in place; what
    is returned is the module, or its replacement if it is such a layer itself.

    >>> replace_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    replacements: dict[nn.Module, nn.Module] = {
        layer: _twin(layer) for layer in module.modules() if type(layer) is nn.Linear and _is_plain(layer)
    }
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])
    return replacements.get(module, module)


def _twin(layer: nn.Linear) -> Linear:
    twin = Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    twin.weight = layer.weight
    twin.bias = layer.bias
    return twin.train(layer.training)


def _is_plain(layer: nn.Linear) -> bool:
    """Whether it is as its constructor made it, but for the values of its parameters."""
    fresh = nn.Linear(1, 1, device="meta").__dict__
    # Whatever a layer can have, hooks first of all, is in a dictionary; its own numbers differ from the fresh one's.
    own = {"in_features", "out_features", "training", "_parameters"}
    return vars(layer).keys() == fresh.keys() and all(vars(layer)[name] == fresh[name] for name in fresh.keys() - own)
