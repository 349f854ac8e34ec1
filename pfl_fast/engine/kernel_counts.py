"""Counts what the operators of a program would launch, move and compute on a GPU; tensors may be on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# Operators that launch nothing, or several kernels; all others that are not views launch one.
NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "alias"}
NOTHING |= {"lift_fresh", "is_same_size"}
SEVERAL = {"native_batch_norm": 3, "max_pool2d_with_indices_backward": 2, "unfold_backward": 2, "index_put_": 2}


@dataclass(frozen=True)
class Kernel:
    """One call of an operator.

    Attributes:
        name: name of the operator.
        launches: number of kernels it launches.
        bytes: size of its arguments and results.
        flops: FLOPs of matrix products and convolutions.
    """

    name: str
    launches: int
    bytes: int
    flops: int


class KernelCounter(TorchDispatchMode):
    """Records the operators that are called inside the ``with`` block.

    Attributes:
        kernels: the calls, in order.

    >>> import torch
    >>> with KernelCounter() as counter:
    ...     y = torch.ones(2, 3).t() @ torch.ones(2, 4)
    >>> [(kernel.name, kernel.launches, kernel.bytes, kernel.flops) for kernel in counter.kernels]
    [('ones', 1, 24, 0), ('ones', 1, 32, 0), ('mm', 1, 104, 48)]
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: list[Kernel] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first operator imports torch._dynamo, which takes seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs the operator and records it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if not func.is_view and name not in NOTHING:
            formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
            flops = formula(*args, **kwargs, out_val=result) if formula else 0
            tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
            # A view may hold the same memory several times: patches of an image, an expanded tensor.
            moved = {id(t): min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors}
            self.kernels.append(Kernel(name, _launches(name, args), sum(moved.values()), flops))
        return result


def _launches(name: str, args: tuple[Any, ...]) -> int:
    if name == "convolution":  # the bias is added by another kernel
        return 1 + (args[2] is not None)
    if name == "convolution_backward":
        return sum(args[-1])
    return SEVERAL.get(name, 1)
