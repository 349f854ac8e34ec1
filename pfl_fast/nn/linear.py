"""The fully connected layer of clients that train with few samples at a time.

    y = x W^T + b        dL/dW = (dL/dy)^T x

Whoever has x and dL/dy has the gradient of W as two factors that are small where samples are few: the layer can note
them, so that W is stepped without a gradient of its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pfl_fast import ops
from pfl_fast.ops.linear import torch_is_faster

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class LinearCall:
    """One call of a layer.

    Attributes:
        layer: which.
        x: ``[b, k]``, what it was given.
        y: where in the graph the gradient of its result arises, whatever is done to the result in place later on.
        version: of x's values, which change if something is done to x in place.
    """

    layer: Linear
    x: Tensor
    y: GradientEdge
    version: int

    def check(self) -> None:
        """As autograd does: a gradient cannot be had any more if what it is made of was changed."""
        if self.x._version != self.version:
            raise RuntimeError(
                f"the input {list(self.x.shape)} of {self.layer} was changed in place after the layer saw it, and is "
                "needed for the gradient of its weight; change a copy instead"
            )


@dataclass
class LinearCalls:
    """Where layers note their calls, in turn, while it is open."""

    open: bool = False
    calls: list[LinearCall] = field(default_factory=list)


class Linear(nn.Linear):
    """``nn.Linear`` by :func:`pfl_fast.ops.linear`, which notes its calls where ``notes`` says so.

    It has the parameters of ``nn.Linear``, of the same names and initial values. Under autocast, and for anything but
    ``[b, k]``, it does what ``nn.Linear`` does.

    A call that is noted leaves the weight out of the graph: the gradient of the weight does not come from autograd
    then, but is for whoever asked for the calls to make. Noted are calls on ``[b, k]`` with gradients enabled, while
    the weight is a leaf that wants one.

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
        if x.dim() != 2 or torch.is_autocast_enabled(x.device.type):
            return F.linear(x, weight, self.bias)
        product = F.linear if torch_is_faster(x, weight) else ops.linear
        if notes is None or not notes.open or not _wants_gradient(weight):
            return product(x, weight, self.bias)
        if not x.requires_grad:
            x = x.detach().requires_grad_()  # so that the result has a place in the graph
        y = product(x, weight.detach(), self.bias)
        notes.calls.append(LinearCall(self, x.detach(), get_gradient_edge(y), x._version))
        return y


def _wants_gradient(weight: Tensor) -> bool:
    return weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()


def replace_linear(module: _Module) -> _Module:
    """Makes every ``nn.Linear`` in ``module`` a :class:`Linear`, with all it has; subclasses stay what they are.

    The module is changed in place, and returned.

    >>> type(replace_linear(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))[0]).__module__
    'pfl_fast.nn.linear'
    """
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Linear
    return module
