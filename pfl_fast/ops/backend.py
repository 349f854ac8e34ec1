"""Which implementation runs, and how an operator registers its Python side with the native library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import library as torch_library

from pfl_fast.native.load import Native, load

NATIVE: Native = load()
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # what every operator takes

_F = TypeVar("_F", bound=Callable[..., Any])
_use_native = NATIVE.available
_differentiable: dict[str, type[torch.autograd.Function]] = {}


def uses_native() -> bool:
    """Whether the native operators run at this moment (else the plain-torch reference does)."""
    return _use_native


@contextmanager
def use(implementation: str) -> Iterator[None]:
    """Forces ``"native"`` or ``"reference"`` operators inside a ``with`` block, for the whole process.

    >>> with use("reference"):
    ...     uses_native()
    False
    """
    global _use_native
    if implementation not in {"native", "reference"}:
        raise ValueError(f"ops.use: implementation must be 'native' or 'reference', got {implementation!r}")
    if implementation == "native" and not NATIVE.available:
        raise RuntimeError(f"ops.use: the native library is not there: {NATIVE.problem}")
    before = _use_native
    _use_native = implementation == "native"
    try:
        yield
    finally:
        _use_native = before


def has_values(tensor: Tensor) -> bool:
    """Whether values may be looked at: in host memory, and not inside vmap or torch.compile."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.device.type == "cpu" and not wrapped and not torch.compiler.is_compiling()


def fake(op: str) -> Callable[[_F], _F]:
    """Registers the function below it as what ``op`` does to shapes and dtypes alone."""
    return _register(lambda function: torch_library.register_fake(f"pfl_fast::{op}", function))


def vmap(op: str) -> Callable[[_F], _F]:
    """Registers the function below it as the batching rule of ``op``."""
    return _register(lambda function: torch_library.register_vmap(f"pfl_fast::{op}", function))


def gradient(op: str, setup_context: Callable[..., None]) -> Callable[[_F], _F]:
    """Registers the function below it as the backward of ``op``."""

    def register(function: Callable[..., Any]) -> None:
        torch_library.register_autograd(f"pfl_fast::{op}", function, setup_context=setup_context)
        _differentiable[op] = _function(op, setup_context, function)

    return _register(register)


def call(op: str, *arguments: Any) -> Any:
    """``op`` with gradients, all its arguments given by position and none of them a list of tensors.

    As ``torch.ops.pfl_fast.<op>``, whose autograd takes 40 microseconds more, for what only transforms and compilers
    need: a tenth of a step of a small model.
    """
    transformed = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
    if transformed or not torch.is_grad_enabled():
        return getattr(torch.ops.pfl_fast, op).default(*arguments)
    return _differentiable[op].apply(*arguments)


def tell_autograd(written: list[Tensor]) -> None:
    """A backward pass that saved one of these must fail rather than use the new value; torch.compile knows itself."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(written)


def _function(
    op: str, setup_context: Callable[..., None], derivative: Callable[..., Any]
) -> type[torch.autograd.Function]:
    overload = getattr(torch.ops.pfl_fast, op).default

    def forward(ctx: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            output = overload(*inputs)
        setup_context(ctx, inputs, output)
        return output

    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            return derivative(ctx, *grads)
        with torch._C._AutoDispatchBelowAutograd():
            return derivative(ctx, *grads)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(op, (torch.autograd.Function,), members)


def _register(action: Callable[[Any], Any]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        if NATIVE.available:
            action(function)
        return function

    return decorate
