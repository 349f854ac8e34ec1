"""Precision and determinism of float32 arithmetic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

_F = TypeVar("_F", bound=Callable[..., Any])
PRODUCTS = {
    *(functional.linear, functional.scaled_dot_product_attention),
    *(torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose2d),
    *(torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__),
}


@contextmanager
def arithmetic(precision: str, deterministic: bool) -> Iterator[None]:
    """Sets torch's switches inside a ``with`` block, for the whole process.

    Args:
        precision: ``"tf32"`` computes float32 products on GPUs with TF32 tensor cores; otherwise they are exact.
        deterministic: use deterministic algorithms only; operators without one raise.
    """
    backends: Any = torch.backends
    switches = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    for switch in switches:
        switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
        torch.use_deterministic_algorithms(was, warn_only=warned)


class Bf16Products(TorchFunctionMode):
    """Computes products of float32 tensors in bfloat16 and returns float32; all other operators stay as they are.

    ``torch.autocast`` does not reach every product under ``torch.vmap``.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function not in PRODUCTS:
            return function(*args, **kwargs)
        dtypes = {x.dtype for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        if dtypes != {torch.float32}:
            return function(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, lambda x: x.to(torch.bfloat16), (args, kwargs))
        return function(*args, **kwargs).float()


def with_bf16_products(function: _F, enabled: bool) -> _F:
    """Returns a loss or prediction that runs with :class:`Bf16Products` if ``enabled``."""
    if not enabled:
        return function

    def with_mode(*arguments: Any) -> Any:
        with Bf16Products():
            return function(*arguments)

    return with_mode  # type: ignore[return-value]
