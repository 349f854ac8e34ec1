"""Choice between native and reference operators, and registration of an operator's Python side with torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import library as torch_library

from pfl_fast.native.load import Native, load
from pfl_fast.ops.stack import StackFunction, stack_of
from pfl_fast.ops.support import all_to_front, to_front

NATIVE: Native = load()

_F = TypeVar("_F", bound=Callable[..., Any])
_chosen = "auto"  # by ops.use
_takes_stacks: set[str] = set()  # operators whose tensors all accept another leading dimension
_warned: set[str] = set()  # types of devices
_autograd_functions: dict[str, type[StackFunction]] = {}
# "cpu" has all kernels, and "meta" the fake kernels of all operators.
_CUDA_KERNELS = frozenset(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))


def uses_native() -> bool:
    """Returns True if native operators are in use where they have a kernel, False if the plain-torch reference is."""
    return NATIVE.available and _chosen != "reference"


def chosen() -> str:
    """Returns what :func:`use` selected, ``"native"`` or ``"reference"``; ``"auto"`` outside of it."""
    return _chosen


def has_kernel(op: str, device_type: str) -> bool:
    """Returns whether the native library has a kernel of ``op`` for a type of device."""
    return device_type in {"cpu", "meta"} or (device_type == "cuda" and f"pfl_fast::{op}" in _CUDA_KERNELS)


def runs_native(op: str, tensor: Tensor) -> bool:
    """Returns whether a call of ``op`` runs the native kernel for the device of ``tensor``, or else the reference.

    The first call without a kernel for a type of device warns; after ``ops.use("native")`` it raises.
    """
    if not NATIVE.available or _chosen == "reference":
        return False
    if tensor.is_cpu or has_kernel(op, device_type := tensor.device.type):
        return True
    remedy = NATIVE.cuda_problem if device_type == "cuda" else None
    problem = f"pfl_fast::{op} has no native kernel for {device_type} tensors" + (f". {remedy}" if remedy else "")
    if _chosen == "native":
        raise RuntimeError(problem)
    if device_type not in _warned and not torch.compiler.is_compiling():
        _warned.add(device_type)
        message = "This operator, and every other without a kernel, runs in plain PyTorch there, which is slower"
        warnings.warn(f"{problem}. {message}", RuntimeWarning, stacklevel=3)
    return False


@contextmanager
def use(implementation: str) -> Iterator[None]:
    """Selects ``"native"`` or ``"reference"`` operators inside a ``with`` block, for the whole process.

    By default an operator without a native kernel for the device of its tensors runs its reference; selected native
    operators raise instead.

    >>> with use("reference"):
    ...     uses_native()
    False
    """
    global _chosen
    if implementation not in {"native", "reference"}:
        raise ValueError(f"ops.use: implementation must be 'native' or 'reference', got {implementation!r}")
    if implementation == "native" and not NATIVE.available:
        raise RuntimeError(f"ops.use: the native library is not available: {NATIVE.problem}")
    previous, _chosen = _chosen, implementation
    try:
        yield
    finally:
        _chosen = previous


def fake(op: str) -> Callable[[_F], _F]:
    """Registers the fake (meta) kernel of ``op``."""
    return _register(lambda function: torch_library.register_fake(f"pfl_fast::{op}", function))


def vmap(op: str) -> Callable[[_F], _F]:
    """Registers the vmap rule of ``op``."""
    return _register(lambda function: torch_library.register_vmap(f"pfl_fast::{op}", function))


def vmap_to_leading_dimension(op: str) -> None:
    """Registers the vmap rule of an ``op`` whose tensors and lists of tensors all accept another leading dimension."""
    _takes_stacks.add(op)

    @vmap(op)
    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        def front(x: Any, dims: Any) -> Any:
            if isinstance(x, Tensor):
                return to_front(x, dims, info.batch_size)
            is_list = isinstance(x, (list, tuple)) and any(isinstance(item, Tensor) for item in x)
            return all_to_front(x, dims, info.batch_size) if is_list else x

        def out_dims(result: Any) -> Any:
            if isinstance(result, Tensor):  # a gradient that is not needed is empty, without the leading dimension
                return 0 if result.shape[:1] == (info.batch_size,) else None
            return type(result)(map(out_dims, result))

        results = getattr(torch.ops.pfl_fast, op).default(*map(front, arguments, in_dims))
        return results, out_dims(results)


def backward(op: str, setup_context: Callable[..., None]) -> Callable[[_F], _F]:
    """Registers the backward of ``op``."""

    def register(function: Callable[..., Any]) -> None:
        torch_library.register_autograd(f"pfl_fast::{op}", function, setup_context=setup_context)
        _autograd_functions[op] = _autograd_function(op, setup_context, function)

    return _register(register)


def once_differentiable(op: str) -> None:
    """Registers a backward of ``<op>_backward`` that raises: ``op`` has no second derivatives."""

    def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @backward(f"{op}_backward", setup_context=save_nothing)
    def double_backward(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(f"pfl_fast::{op}: second derivatives are not implemented; ops.use('reference') has them")


def call(op: str, *arguments: Any) -> Any:
    """Calls a differentiable ``op`` with positional arguments, none of them a list of tensors.

    Equal to ``torch.ops.pfl_fast.<op>``, but outside of torch.compile it goes through a ``torch.autograd.Function``,
    inside of the engine's ``torch.vmap`` on the whole stack. This saves 40 microseconds per call, under vmap 200.
    """
    if torch.compiler.is_compiling():
        return _overload(op)(*arguments)
    if not torch._C._are_functorch_transforms_active():
        return _call(op, *arguments)
    tensors = [x if isinstance(x, Tensor) else None for x in arguments]
    stack = stack_of(*tensors) if op in _takes_stacks else None
    if stack is None:
        return _overload(op)(*arguments)
    whole = [x if tensor is None else tensor for x, tensor in zip(arguments, stack.tensors, strict=True)]
    return stack.call(_call, op, *whole)


def _call(op: str, *arguments: Any) -> Any:
    if torch.is_grad_enabled():
        return _autograd_functions[op].apply(*arguments)
    return _overload(op)(*arguments)


def _overload(op: str) -> Any:
    return getattr(torch.ops.pfl_fast, op).default


def mark_modified(tensors: list[Tensor]) -> None:
    """Increments the version counters of tensors written in place, so that a backward that saved one raises.

    torch.compile tracks in-place writes itself.
    """
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(tensors)


def _autograd_function(
    op: str, setup_context: Callable[..., None], derivative: Callable[..., Any]
) -> type[StackFunction]:
    overload = _overload(op)

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
    return type(op, (StackFunction,), members)


def _register(action: Callable[[Any], Any]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        if NATIVE.available:
            action(function)
        return function

    return decorate
