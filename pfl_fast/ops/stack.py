"""Functions of a whole stack of clients, called from code that runs for one client under ``torch.vmap``.

Under vmap a tensor ``[C, *shape]`` of C clients has the shape of one. torch's own way to replace a batching rule, the
``vmap`` method of ``torch.autograd.Function``, takes 100 microseconds of the host per call; this way takes ten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.utils._pytree import tree_map_only

from pfl_fast.ops.support import to_front

_functorch: Any = torch._C._functorch
_Result = TypeVar("_Result")


class StackFunction(_SingleLevelFunction):
    """Base class of differentiable functions of a whole stack: ``forward(ctx, ...)`` and ``backward(ctx, ...)``.

    Attributes:
        apply: calls the function; valid outside of functorch's transforms and inside :meth:`Stack.call`.
    """

    if TYPE_CHECKING:
        apply: ClassVar[Callable[..., Tensor]]


@dataclass(frozen=True)
class Stack:
    """Tensors of all clients of a stack.

    Attributes:
        tensors: the tensors ``[C, *shape]``; None stays None.
        level: level of the ``torch.vmap`` over the clients.
    """

    tensors: list[Any]
    level: int

    def call(self, function: Callable[..., _Result], *arguments: Any, dim: int = 0) -> _Result:
        """Returns ``function(*arguments)`` as tensors of one client under vmap.

        Args:
            function: returns a tensor, or a tuple of them.
            arguments: arguments of the function.
            dim: dimension of the results that is C.
        """
        allowed = _functorch.get_single_level_autograd_function_allowed()
        _functorch.set_single_level_autograd_function_allowed(True)
        try:
            with torch._C._DisableFuncTorch():
                result = function(*arguments)
        finally:
            _functorch.set_single_level_autograd_function_allowed(allowed)
        wrapped: Any = tree_map_only(Tensor, lambda x: _functorch._add_batch_dim(x, dim, self.level), result)
        return cast(_Result, wrapped)


def stack_of(*tensors: Tensor | None) -> Stack | None:
    """Returns the stack that tensors of one client belong to, or None outside of vmap or inside other transforms.

    >>> def total(x):
    ...     stack = stack_of(x)
    ...     return stack.call(torch.sum, *stack.tensors, 1)
    >>> torch.vmap(total)(torch.ones(2, 3))
    tensor([3., 3.])
    """
    level = _functorch.maybe_current_level()
    if level != 1:
        return None
    batched = [tensor is not None and _functorch.is_batchedtensor(tensor) for tensor in tensors]
    if not any(batched):
        return None
    first = tensors[batched.index(True)]
    size = _functorch.get_unwrapped(first).shape[_functorch.maybe_get_bdim(first)]
    dims = [_functorch.maybe_get_bdim(tensor) if own else None for tensor, own in zip(tensors, batched, strict=True)]
    whole = [_functorch.get_unwrapped(tensor) if own else tensor for tensor, own in zip(tensors, batched, strict=True)]
    front = [x if x is None or dim == 0 else to_front(x, dim, size) for x, dim in zip(whole, dims, strict=True)]
    return Stack(front, level)
