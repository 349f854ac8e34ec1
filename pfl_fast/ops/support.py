"""Argument checks and batching shared by the operators.

The checks repeat those of csrc/common/check.h for calls that do not reach the native kernels: the reference
implementation and fake (meta) tensors. Every message reads ``pfl_fast::<op>: <argument> <expectation>, got <value>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # dtypes supported by every operator
FLOAT_NAMES = "float64, float32, bfloat16 or float16"


def check_tensors(op: str, **arguments: object) -> None:
    """Raises TypeError for the first argument that is not a tensor."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"pfl_fast::{op}: {name} must be a tensor, got {type(value).__name__}")


def check_numbers(op: str, **arguments: object) -> None:
    """Raises TypeError for the first argument that is not a Python number."""
    for name, value in arguments.items():
        if not isinstance(value, (int, float)):
            raise TypeError(f"pfl_fast::{op}: {name} must be a number, got {type(value).__name__}")


def tensor_list(op: str, name: str, value: object, allow_tensor: bool = False) -> list[Tensor]:
    """Returns ``value``, a list or tuple of tensors, as a list; a single tensor too if ``allow_tensor``."""
    if allow_tensor and isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (list, tuple)):
        expected = "a tensor or a list of tensors" if allow_tensor else "a list of tensors"
        raise TypeError(f"pfl_fast::{op}: {name} must be {expected}, got {type(value).__name__}")
    check_tensors(op, **{f"{name}[{i}]": item for i, item in enumerate(value)})
    return list(value)


def fail(op: str, message: str) -> NoReturn:
    """Raises the error of ``op`` for an invalid argument."""
    raise RuntimeError(f"pfl_fast::{op}: {message}")


def expect(op: str, condition: bool, message: str) -> None:
    """Raises the error of ``op`` unless ``condition`` holds."""
    if not condition:
        fail(op, message)


def check_float(op: str, name: str, tensor: Tensor) -> None:
    """Raises unless the dtype of ``tensor`` is a supported floating-point type."""
    if tensor.dtype not in FLOATS:
        fail(op, f"{name} must be {FLOAT_NAMES}, got {tensor.dtype}")


def check_int64(op: str, name: str, tensor: Tensor) -> None:
    """Raises unless ``tensor`` is int64."""
    if tensor.dtype != torch.int64:
        fail(op, f"{name} must be an int64 tensor, got {tensor.dtype}")


def check_dtype(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raises unless both tensors have the same dtype."""
    if tensor.dtype != other.dtype:
        fail(op, f"{name} must have the dtype of {other_name}, {other.dtype}, got {tensor.dtype}")


def check_device(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raises unless both tensors are on the same device."""
    if tensor.device != other.device:
        fail(op, f"{name} must be on the device of {other_name}, {other.device}, got {tensor.device}")


def check_shape(
    op: str, name: str, tensor: Tensor, other_name: str, other: Tensor, shape: Sequence[int] | None = None
) -> None:
    """Raises unless ``tensor`` has the given shape, by default the shape of ``other``."""
    expected, got = list(other.shape if shape is None else shape), list(tensor.shape)
    if got != expected and shape is None:
        fail(op, f"{name} must have the shape of {other_name}, {expected}, got {got}")
    if got != expected:
        fail(op, f"{name} must have shape {expected} for {other_name} {list(other.shape)}, got {got}")


def check_like(
    op: str, name: str, tensor: Tensor, other_name: str, other: Tensor, shape: Sequence[int] | None = None
) -> None:
    """Raises unless ``tensor`` has dtype, device and shape of ``other``; ``shape`` replaces the expected shape."""
    check_dtype(op, name, tensor, other_name, other)
    check_device(op, name, tensor, other_name, other)
    check_shape(op, name, tensor, other_name, other, shape)


def check_float_list(op: str, name: str, tensors: Sequence[Tensor]) -> None:
    """Raises unless all tensors have the same floating-point dtype and the same device."""
    for t, x in enumerate(tensors):
        check_float(op, f"{name}[{t}]", x)
        check_dtype(op, f"{name}[{t}]", x, f"{name}[0]", tensors[0])
        check_device(op, f"{name}[{t}]", x, f"{name}[0]", tensors[0])


def check_list_like(op: str, name: str, tensors: Sequence[Tensor], other_name: str, others: Sequence[Tensor]) -> None:
    """Raises unless ``tensors`` has one tensor per tensor of ``others``, of the same dtype, device and shape."""
    count = len(others)
    expect(
        op, len(tensors) == count, f"{name} must hold {count} tensors, one for each of {other_name}, got {len(tensors)}"
    )
    for t, (x, other) in enumerate(zip(tensors, others, strict=True)):
        check_like(op, f"{name}[{t}]", x, f"{other_name}[{t}]", other)


def is_readable(tensor: Tensor) -> bool:
    """Returns whether the values can be read without a device synchronisation or a vmap or compiler error."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.device.type == "cpu" and not wrapped and not torch.compiler.is_compiling()


def to_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    """Moves the batch dimension of vmap to the front; a tensor without one is expanded, without a copy."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def all_to_front(tensors: Sequence[Tensor | None], dims: Sequence[int | None], size: int) -> list[Any]:
    """Applies :func:`to_front` to every tensor; None stays None."""
    return [None if x is None else to_front(x, d, size) for x, d in zip(tensors, dims, strict=True)]
