"""Computes torch's own CUDA operators on a ghost GPU by their CPU kernels: memory of the ghost is host memory."""

from __future__ import annotations

import ctypes
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

# Operators that are not registered for CUDA by themselves, but launch a kernel.
OTHERS = ("aten::copy_", "aten::convolution", "aten::convolution_backward")


def install() -> torch.library.Library:
    """Replaces torch's kernels on CUDA, as long as the returned object lives; views and factories stay torch's own."""
    library = torch.library.Library("aten", "IMPL")
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*previously registered kernel.*")
        for name in {*registered, *OTHERS}:
            operator = overload(name)
            if operator is not None and computes(operator):
                library.impl(name.removeprefix("aten::"), partial(compute, operator), "CUDA")
    return library


def overload(name: str) -> Any:
    """The operator ``aten::name.overload``; None for other namespaces."""
    space, _, rest = name.partition("::")
    name, _, kind = rest.partition(".")
    return getattr(getattr(torch.ops.aten, name), kind or "default") if space == "aten" else None


def computes(operator: Any) -> bool:
    """Whether an operator computes values from tensors, and is not a view or a reader of one value."""
    schema = operator._schema
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    return (
        takes_tensors and not views and schema.name not in {"aten::_local_scalar_dense", "aten::set_", "aten::resize_"}
    )


class Tape:
    """Operators of a capture. A capture runs nothing: its updates are undone at its end."""

    current: Tape | None = None

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def add(self, operator: Any, args: Any, kwargs: Any) -> None:
        """Adds a call before it runs."""
        self.calls.append((operator, args, kwargs, []))
        arguments = operator._schema.arguments
        given = [*zip(arguments, args, strict=False), *((a, kwargs.get(a.name)) for a in arguments[len(args) :])]
        # The schema of BatchNorm does not say that it updates the running statistics.
        written = [v for a, v in given if (a.alias_info and a.alias_info.is_write) or a.name.startswith("running_")]
        self.before += [(t, t.clone()) for t in tree_leaves(written) if isinstance(t, Tensor)]

    def undo(self) -> None:
        """Undoes all updates."""
        for tensor, value in reversed(self.before):
            tensor.copy_(value)
        self.before.clear()

    def replay(self) -> None:
        """Computes all calls again, on the same memory."""
        for operator, args, kwargs, made in self.calls:
            results = [t for t in tree_leaves(operator.overloadpacket(*args, **kwargs)) if isinstance(t, Tensor)]
            given = {id(t) for t in tree_leaves((args, kwargs))}
            for memory, result in zip(made, [t for t in results if id(t) not in given], strict=True):
                memory.copy_(result)


def compute(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator on tensors that share the memory of its arguments, and returns results on their device."""
    originals: dict[int, Tensor] = {}

    def to_host(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        if not isinstance(x, Tensor) or not x.is_cuda:
            return x
        same = on_host(x)
        originals[id(same)] = x
        return same

    args, kwargs = tree_map(to_host, (args, kwargs))
    tape = Tape.current
    if tape:
        tape.add(operator, args, kwargs)
    device = next(iter(originals.values())).device

    def to_device(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) in originals:
            original = originals[id(x)]
            if original.shape != x.shape:  # an ``out`` of the wrong size
                on_host(original.resize_(x.shape)).copy_(x)
            return original
        result = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
        memory = on_host(result).copy_(x)
        if tape:
            tape.calls[-1][3].append(memory)
        return result

    # The overload is chosen anew: a number may have come as a tensor.
    return tree_map(to_device, operator.overloadpacket(*args, **kwargs))


def on_host(tensor: Tensor) -> Tensor:
    """CPU tensor that shares the memory of a tensor on a ghost GPU."""
    bytes_ = tensor.untyped_storage().nbytes()
    if not bytes_:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_uint8 * bytes_).from_address(tensor.untyped_storage().data_ptr())
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
