"""A drop-in ``nn.Linear`` that can record its calls, so that a weight is updated without a gradient tensor.

    y = x W^T + b        dL/dW = (dL/dy)^T x

The gradient of W is a product of two factors, x and dL/dy, which are small if the batch is small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pfl_fast.ops import dispatch
from pfl_fast.ops.stack import StackFunction, stack_of

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class LinearCall:
    """One recorded call of a layer.

    Attributes:
        layer: the layer.
        x: ``[b, k]`` input.
        y: gradient edge of the output, valid even if the output is later changed in place.
        version: autograd version counter of ``x`` at the call.
    """

    layer: Linear
    x: Tensor
    y: GradientEdge
    version: int

    def check(self) -> None:
        """Raises RuntimeError if ``x`` was changed in place after the call, as autograd does."""
        if self.x._version != self.version:
            raise RuntimeError(
                f"the input {list(self.x.shape)} of {self.layer} was changed in place after the layer saw it, and is "
                "needed for the gradient of its weight; change a copy instead"
            )


@dataclass
class LinearRecorder:
    """Calls of the layers that share this recorder, in order, while ``enabled``."""

    enabled: bool = False
    calls: list[LinearCall] = field(default_factory=list)


class Linear(nn.Linear):
    """``nn.Linear`` that records its calls in ``recorder``.

    Parameters have the names and initial values of ``nn.Linear``.

    While recording is on, the weight is detached from the graph; the owner of the recorder computes its gradient from
    the recorded input and output gradient. Calls on ``[b, k]`` without autocast are recorded if gradients are enabled
    and the weight is a leaf that requires a gradient.

    >>> layer, x = Linear(3, 2), torch.ones(4, 3)
    >>> layer.recorder = LinearRecorder(enabled=True)
    >>> loss = layer(x).sum()
    >>> (call,) = layer.recorder.calls
    >>> (dy,) = torch.autograd.grad(loss, [call.y])
    >>> dy.t() @ call.x
    tensor([[4., 4., 4.],
            [4., 4., 4.]])
    """

    recorder: LinearRecorder | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``[b, n]`` for ``[b, k]``."""
        weight, recorder = self.weight, self.recorder
        wants_gradient = weight.requires_grad and weight.is_leaf and torch.is_grad_enabled()
        plain = x.dim() == 2 and (x.is_meta or not torch.is_autocast_enabled(x.device.type))
        if recorder is None or not (recorder.enabled and wants_gradient and plain):
            return linear(x, weight, self.bias) if plain else F.linear(x, weight, self.bias)
        if not x.requires_grad:
            x = x.detach().requires_grad_()  # the output needs a node in the graph
        y = F.linear(x, weight.detach(), self.bias)
        recorder.calls.append(LinearCall(self, x.detach(), get_gradient_edge(y), x._version))
        return y


class StackedLinear(StackFunction):
    """The linear layers of C clients: ``x [C, b, k]``, ``weight [C, n, k]`` and ``bias [C, n]`` to ``[C, b, n]``.

    One batched product and one addition. Gradients are contiguous, unlike those of torch's rule for ``F.linear``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns the outputs."""
        ctx.save_for_backward(x, weight)
        y = torch.bmm(x, weight.mT)
        return y if bias is None else y.add_(bias.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the three arguments."""
        (x, weight), (needs_x, needs_weight, needs_bias) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if needs_x else None,
            torch.bmm(grad.mT, x) if needs_weight else None,
            grad.sum(1) if needs_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns ``x W^T + b`` for ``x [b, k]``; on CUDA the layers of a stack are one :class:`StackedLinear`."""
    if dispatch.device_type(weight) == "cuda" and not torch._C._len_torch_function_stack():
        stack = stack_of(x, weight, bias)
        if stack is not None:
            return stack.call(StackedLinear.apply, *stack.tensors)
    return F.linear(x, weight, bias)


def replace_linear(module: _Module) -> _Module:
    """Turns every ``nn.Linear`` in ``module`` into a :class:`Linear`, in place, and returns ``module``.

    Subclasses of ``nn.Linear`` are left unchanged.

    >>> type(replace_linear(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))[0]).__module__
    'pfl_fast.nn.linear'
    """
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Linear
    return module
