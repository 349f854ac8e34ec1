"""Linear layers that note what they are called with, so that their weights can be stepped without a gradient tensor.

    y = x W^T + b        dL/dW = (dL/dy)^T x

Whoever has x and dL/dy has the gradient of W as two factors that are small where samples are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge


@dataclass(frozen=True)
class LinearCall:
    """One call of a layer.

    Attributes:
        x: ``[b, k]``, what it was given.
        y: where in the graph the gradient of its result arises, whatever is done to the result in place later on.
    """

    x: Tensor
    y: GradientEdge


class Linear(nn.Linear):
    """``nn.Linear``, and a list of its calls while ``calls`` is one.

    A call that is noted leaves the weight out of the graph: the gradient of the weight does not come from autograd
    then, but is for whoever asked for the calls to make. Noted are calls on ``[b, k]`` samples with gradients enabled,
    while the weight is a leaf that wants one; all others do as ``nn.Linear`` does.

    >>> layer = Linear(3, 2)
    >>> layer.calls = []
    >>> x = torch.ones(4, 3)
    >>> loss = layer(x).sum()
    >>> (dy,) = torch.autograd.grad(loss, [layer.calls[0].y])
    >>> dy.t() @ layer.calls[0].x
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """

    calls: list[LinearCall] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n]`` for ``[b, k]``."""
        weight = self.weight
        wanted = weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()
        if self.calls is None or not wanted or x.dim() != 2:
            return F.linear(x, weight, self.bias)
        if not x.requires_grad:
            x = x.detach().requires_grad_()  # so that the result has a place in the graph
        y = F.linear(x, weight.detach(), self.bias)
        self.calls.append(LinearCall(x.detach(), get_gradient_edge(y)))
        return y


def replace_linear(module: nn.Module) -> None:
    """Makes every ``nn.Linear`` in ``module`` a :class:`Linear`, with all it has; subclasses stay what they are.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> replace_linear(model)
    >>> type(model[0]).__module__
    'pfl_fast.nn.linear'
    """
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Linear
