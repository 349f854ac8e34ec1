"""BatchNorm of a stack: C clients with n channels each are one BatchNorm over C n channels.

torch's own rule normalises that way, too, but scales and shifts in separate operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pfl_fast.ops.stack import stack_of

_Module = TypeVar("_Module", bound=nn.Module)


def folded(x: Tensor, *arguments: Any) -> Tensor:
    """Returns ``torch.nn.functional.batch_norm`` of a stack, ``[b, C, n, ...]``.

    Args:
        x: ``[C, b, n, ...]`` input.
        arguments: running mean, running variance, weight and bias, ``[C, n]`` or None; then ``training``, ``momentum``
            and ``eps``.
    """
    tensors, options = arguments[:4], arguments[4:]
    stacked = x.movedim(0, 1)
    flat: list[Any] = [None if t is None else t.reshape(-1) for t in tensors]
    result = F.batch_norm(stacked.flatten(1, 2), *flat, *options)
    # Unlike a view, which ReLU(inplace=True) would make expensive to differentiate.
    view: Tensor = torch.ops.aten._unsafe_view(result, stacked.shape)
    return view


def _is_stacked(tensor: Tensor) -> bool:
    return torch._C._functorch.is_batchedtensor(tensor)


class _Folded(nn.modules.batchnorm._BatchNorm):
    """A BatchNorm layer that folds a stack into its channels; ``momentum`` must be a number.

    Attributes:
        uncounted: receives ``num_batches_tracked`` of each call instead of adding 1 to it; the owner of the list adds.
    """

    uncounted: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised ``[b, c, ...]``, as the layer's class does."""
        stack = stack_of(x, self.running_mean, self.running_var, self.weight, self.bias)
        if stack is None:
            return super().forward(x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        tracked = self.running_mean is not None
        if self.training and self.running_mean is not None and not _is_stacked(self.running_mean):
            raise RuntimeError("running statistics of BatchNorm must be stacked if the input is")
        if self.training and self.num_batches_tracked is not None:
            self._count(self.num_batches_tracked)
        training = self.training or not tracked
        return stack.call(folded, *stack.tensors, training, self.momentum, self.eps, dim=1)

    def _count(self, batches: Tensor) -> None:
        if self.uncounted is None:
            batches.add_(1)
            return
        while torch._C._functorch.is_functorch_wrapped_tensor(batches):
            batches = torch._C._functorch.get_unwrapped(batches)
        self.uncounted.append(batches)


class FoldedBatchNorm1d(_Folded, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` that folds a stack into its channels."""


class FoldedBatchNorm2d(_Folded, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that folds a stack into its channels."""


class FoldedBatchNorm3d(_Folded, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` that folds a stack into its channels."""


FOLDED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: FoldedBatchNorm1d,
    nn.BatchNorm2d: FoldedBatchNorm2d,
    nn.BatchNorm3d: FoldedBatchNorm3d,
}


def fold_batch_norm(module: _Module, uncounted: list[Tensor] | None = None) -> _Module:
    """Lets every ``nn.BatchNorm1d``, ``2d`` and ``3d`` in ``module`` fold a stack, in place, and returns ``module``.

    Their subclasses are left unchanged. The layers collect ``num_batches_tracked`` in ``uncounted`` if it is a list.

    >>> type(fold_batch_norm(nn.Sequential(nn.BatchNorm2d(3)))[0]).__name__
    'FoldedBatchNorm2d'
    """
    for layer in module.modules():
        if type(layer) in FOLDED:
            layer.__class__ = FOLDED[type(layer)]
            layer.uncounted = uncounted  # type: ignore[assignment]
    return module


def counting(function: Callable[..., Any], uncounted: list[Tensor]) -> Callable[..., Any]:
    """Returns ``function`` of a stack that also adds 1 to the counts its BatchNorm layers collect, in one operator."""

    def call(*arguments: Any) -> Any:
        uncounted.clear()
        result = function(*arguments)
        if uncounted:
            torch._foreach_add_(uncounted, 1)
        return result

    return call
