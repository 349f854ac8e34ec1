"""What the modules of this library run on each type of device: an operator's native kernel, or plain PyTorch.

Modules ask this table; calls of the operators themselves do not. ``ops.use`` overrides it.

``conv_relu_pool`` on CUDA: convolutions are matrix products there, for which cuBLAS and cuDNN have better kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from pfl_fast.ops import backend

TORCH_IS_FASTER = frozenset([("conv_relu_pool", "cuda")])
_traced = "cpu"  # type of device that the meta device stands for


def runs_kernel(op: str, tensor: Tensor) -> bool:
    """Returns whether modules run the native kernel of ``op`` on the device of ``tensor``, or else plain PyTorch.

    >>> import torch
    >>> runs_kernel("conv_relu_pool", torch.zeros(1))
    True
    """
    if backend.chosen() != "auto":
        return backend.uses_native()
    return (op, device_type(tensor)) not in TORCH_IS_FASTER


def device_type(tensor: Tensor) -> str:
    """Returns the type of the device that a tensor is on, or stands for."""
    return _traced if tensor.is_meta else tensor.device.type


@contextmanager
def traced_as(device_type: str) -> Iterator[None]:
    """Lets meta tensors stand for tensors on a type of device inside a ``with`` block, to count what runs there."""
    global _traced
    previous, _traced = _traced, device_type
    try:
        yield
    finally:
        _traced = previous
