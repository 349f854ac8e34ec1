"""BatchNorm of a stack: C clients with n channels each are one BatchNorm over C n channels.

torch's own rule normalises that way, too, but scales and shifts in separate operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


@dataclass
class BatchCounts:
    """Tensors ``num_batches_tracked`` of a stack that are counted together, after a loss.

    Attributes:
        inputs: ids of the tensors of the stack. Others, which a loss makes and may read, are counted at once.
        found: those of the layers that were called.
    """

    inputs: set[int] = field(default_factory=set)
    found: list[Tensor] = field(default_factory=list)


def _is_stacked(tensor: Tensor) -> bool:
    return torch._C._functorch.is_batchedtensor(tensor)


class _Folded(nn.modules.batchnorm._BatchNorm):
    """A BatchNorm layer that folds a stack into its channels; ``momentum`` must be a number.

    Attributes:
        counts: receives ``num_batches_tracked`` of each call instead of adding 1 to it; its owner adds.
    """

    counts: BatchCounts | None = None

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
        tensor = batches
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        if self.counts is not None and id(tensor) in self.counts.inputs:
            self.counts.found.append(tensor)
        else:
            batches.add_(1)


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


def fold_batch_norm(module: _Module, counts: BatchCounts | None = None) -> _Module:
    """Lets every ``nn.BatchNorm1d``, ``2d`` and ``3d`` in ``module`` fold a stack, in place, and returns ``module``.

    Their subclasses are left unchanged. The layers collect ``num_batches_tracked`` in ``counts``, if it is given.

    >>> type(fold_batch_norm(nn.Sequential(nn.BatchNorm2d(3)))[0]).__name__
    'FoldedBatchNorm2d'
    """
    for layer in module.modules():
        if type(layer) in FOLDED:
            layer.__class__ = FOLDED[type(layer)]
            layer.counts = counts  # type: ignore[assignment]
    return module


def counting(function: Callable[..., Any], counts: BatchCounts) -> Callable[..., Any]:
    """Returns ``function(tensors, ...)`` of a stack that also adds 1 to the collected counts, in one operator."""

    def call(tensors: Mapping[str, Tensor], *arguments: Any) -> Any:
        counts.inputs, counts.found = {id(tensor) for tensor in tensors.values()}, []
        result = function(tensors, *arguments)
        if counts.found:
            torch._foreach_add_(counts.found, 1)
        return result

    return call
