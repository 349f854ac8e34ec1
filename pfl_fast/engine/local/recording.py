"""Records the operators of a local step: forward, backward and update as one flat list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Operator = Any  # torch._ops.OpOverload
ALIASES = {"aten::detach", "aten::alias", "aten::lift_fresh"}  # return their input, where no gradients are recorded
# Operators whose result cannot be computed by a fixed program: it depends on values, or on a generator's state.
REFUSED_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)
LARGEST_CONSTANT = 4096


class NotRecordable(Exception):  # noqa: N818
    """A step that is not a fixed list of operators; the message says why."""


@dataclass(frozen=True)
class Value:
    """A tensor of a recording: an input by name, or the number of a result."""

    name: str


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator, whose tensors are :class:`Value`.

    Attributes:
        results: one value per result, None for results that are not tensors.
    """

    op: Operator
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Value | list[Value] | None, ...]

    def writes(self) -> Iterator[tuple[Value, bool]]:
        """Yields the values that the call writes to, and whether it only writes, as with ``out=``."""
        given = dict(zip((argument.name for argument in self.op._schema.arguments), self.args, strict=False))
        given.update(self.kwargs)
        for argument in self.op._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = given.get(argument.name)
                for item in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(item, Value):
                        yield item, argument.is_out


def _indexes_by_number(op: Operator, args: Sequence[Any]) -> bool:
    """Returns whether a call is an index without masks, whose result has a fixed shape."""
    return op.name() == "aten::index.Tensor" and all(i is None or i.dtype == torch.int64 for i in args[1])


def values_in(arguments: object) -> list[Value]:
    """Returns the values in nested lists and dictionaries."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Value)]


class Recording(TorchDispatchMode):
    """Records the operators that run inside a ``with`` block.

    Args:
        inputs: tensors by name; every other tensor is a result of the recording, a constant or scratch memory.

    Attributes:
        calls: the calls, in order.
        constants: tensors that are neither inputs nor results, by name, such as ``torch.tensor([1.0])`` in a loss.
        scratch: memory that a call writes its result to, by name.
        refused: why the calls are no fixed program, or None. The step itself runs to its end.
    """

    def __init__(self, inputs: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OperatorCall] = []
        self.constants: dict[str, Tensor] = {}
        self.scratch: dict[str, Tensor] = {}
        self.refused: str | None = None
        self._values: dict[int, Value] = {}
        self._kept: list[Tensor] = []  # as long as a tensor lives, no other one has its id
        for name, tensor in inputs:
            self._keep(tensor, Value(name))

    def value(self, tensor: Tensor) -> Value:
        """Returns the value of a tensor; an unknown tensor is a constant."""
        if id(tensor) not in self._values:
            if tensor.numel() > LARGEST_CONSTANT:
                self.refused = f"a loss uses a tensor {list(tensor.shape)} that belongs to no part"
            self._keep(tensor, Value(f"c{len(self.constants)}"))
            self.constants[self._values[id(tensor)].name] = tensor
        return self._values[id(tensor)]

    def __torch_dispatch__(self, op: Operator, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tag in REFUSED_TAGS:
            if tag in op.tags and not _indexes_by_number(op, args):
                self.refused = f"{op.name()} depends on values or on torch's random numbers"
        if op.name().partition(".")[0] in ALIASES:
            result = op(*args, **kwargs)
            self._keep(result, self.value(args[0]))
            return result
        for argument in op._schema.arguments:
            if argument.is_out and argument.name in kwargs:
                self._know_scratch(kwargs[argument.name])
        recorded = self._map(args), {name: self._map(value) for name, value in kwargs.items()}
        result = op(*args, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        self.calls.append(OperatorCall(op, recorded[0], recorded[1], tuple(self._result(value) for value in results)))
        return result

    def _know_scratch(self, tensor: Tensor) -> None:
        if id(tensor) not in self._values:
            self._keep(tensor, Value(f"s{len(self.scratch)}"))
            self.scratch[self._values[id(tensor)].name] = tensor

    def _result(self, result: Any) -> Any:
        if isinstance(result, (list, tuple)):
            return [self._result(item) for item in result]
        if not isinstance(result, Tensor):
            return None
        if id(result) not in self._values:
            self._keep(result, Value(f"v{len(self._kept)}"))
        return self._values[id(result)]

    def _map(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self.value(argument)
        if isinstance(argument, (list, tuple)):
            return type(argument)(self._map(item) for item in argument)
        return argument

    def _keep(self, tensor: Tensor, value: Value) -> None:
        self._values[id(tensor)] = value
        self._kept.append(tensor)
