"""Linear layers that note what they are called with, so that their weights can be stepped without a gradient tensor.

    y = x W^T + b        dL/dW = (dL/dy)^T x

Whoever has x and dL/dy has the gradient of W as two factors that are small where samples are few.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge


@dataclass(frozen=True)
class LinearCall:
    """One call of a layer.

    Attributes:
        layer: which.
        x: ``[b, k]``, what it was given.
        y: where in the graph the gradient of its result arises, whatever is done to the result in place later on.
    """

    layer: Linear
    x: Tensor
    y: GradientEdge


@dataclass
class LinearCalls:
    """Where layers note their calls, in turn, while it is open."""

    open: bool = False
    calls: list[LinearCall] = field(default_factory=list)


class Linear(nn.Linear):
    """``nn.Linear``, which notes its calls where ``notes`` says so.

    A call that is noted leaves the weight out of the graph: the gradient of the weight does not come from autograd
    then, but is for whoever asked for the calls to make. Noted are calls on ``[b, k]`` samples with gradients enabled,
    while the weight is a leaf that wants one; all others do as ``nn.Linear`` does.

    >>> layer, x = Linear(3, 2), torch.ones(4, 3)
    >>> layer.notes = LinearCalls(open=True)
    >>> loss = layer(x).sum()
    >>> (call,) = layer.notes.calls
    >>> (dy,) = torch.autograd.grad(loss, [call.y])
    >>> dy.t() @ call.x
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """

    notes: LinearCalls | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n]`` for ``[b, k]``."""
        weight, notes = self.weight, self.notes
        if notes is None or not notes.open or x.dim() != 2 or not _wants_gradient(weight):
            return F.linear(x, weight, self.bias)
        if not x.requires_grad:
            x = x.detach().requires_grad_()  # so that the result has a place in the graph
        y = F.linear(x, weight.detach(), self.bias)
        notes.calls.append(LinearCall(self, x.detach(), get_gradient_edge(y)))
        return y


def _wants_gradient(weight: Tensor) -> bool:
    return weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()


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
