"""A recorded local step as a TorchScript program, which runs many steps without the interpreter's lock.

A program is readable: ``print(program.source)`` shows one operator per line. It takes lists of tensors:

    t       all tensors of the client or stack, written in place
    start   the same tensors before the first step; different from ``t`` where the first update moves a tensor
    c, s, f constant tensors of the loss; scratch memory; all numbers of the step, such as the learning rate
    x, y, seed, k   batches, noise seeds and cached values of the steps, ``[steps, ...]``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from pfl_fast.engine.local.recording import NotRecordable, OperatorCall, Recording, Value, values_in

SECONDS, MOST_STEPS = 0.25, 64
LOOP = """
def run(t: List[Tensor], start: List[Tensor], c: List[Tensor], s: List[Tensor], f: List[float], x: Tensor, y: Tensor,
        seed: Tensor, k: List[Tensor], stop_at_nan: bool) -> List[List[Tensor]]:
    found: List[List[Tensor]] = []
    for number in range(x.size(0)):
        now: List[Tensor] = []
        for values in k:
            now.append(values[number])
        outputs = step(t, start if number == 0 else t, c, s, f, x[number], y[number], seed[number], now)
        found.append(outputs)
        if stop_at_nan:
            loss = float(outputs[0].item())
            if loss != loss or loss - loss != 0.0:
                break
    return found
"""


@dataclass(eq=False)
class StepProgram:
    """A recorded step.

    Attributes:
        names: names of the tensors in the lists ``t`` and ``start``.
        recorded: names of the recorded quantities; a step returns the loss and these.
        source: the step as TorchScript.
        constants: tensors of the list ``c``.
        scratch: tensors like those of the list ``s``.
        numbers: numbers of the list ``f``.
        written: names of the tensors that a step writes to.
        replaced: names of the tensors that a step overwrites without an in-place update before.
        most_steps: steps to run in one call: as many as take about a quarter of a second, since nobody can stop a call.
    """

    names: list[str]
    recorded: list[str]
    source: str
    constants: list[Tensor]
    scratch: list[Tensor]
    numbers: list[float]
    written: set[str]
    replaced: set[str]
    most_steps: int = 4
    _run: Callable[..., list[list[Tensor]]] = field(init=False)

    def compile(self, compiled: dict[str, Callable[..., Any]]) -> None:
        """Compiles the program, or takes it from ``compiled``, where it is kept by its source."""
        if self.source not in compiled:
            compiled[self.source] = torch.jit.CompilationUnit(self.source + LOOP).run
        self._run = compiled[self.source]

    def run(
        self,
        tensors: Sequence[Tensor],
        start: Sequence[Tensor],
        scratch: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        seeds: Tensor,
        cached: Sequence[Tensor],
        stop_at_nan: bool,
    ) -> list[list[Tensor]]:
        """Runs one step per row of ``x``; returns loss and recorded quantities of each step.

        With ``stop_at_nan`` the step whose loss is not finite is the last one.
        """
        begin = perf_counter()
        # TorchScript's optimizations would change the rounding of some results.
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            guard = torch._C._AutoDispatchBelowAutograd()  # else autograd, which is Python, takes the lock
            try:
                lists = [list(values) for values in (tensors, start, self.constants, scratch)]
                found = self._run(*lists, self.numbers, x, y, seeds, list(cached), stop_at_nan)
            finally:
                del guard
        self.most_steps = max(1, min(MOST_STEPS, int(SECONDS * len(found) / (perf_counter() - begin))))
        return found


def write_program(recording: Recording, names: list[str], loss: Tensor, recorded: dict[str, Tensor]) -> StepProgram:
    """Returns the program of a recording whose inputs are ``names``, ``x``, ``y``, ``seed`` and ``k0``, ``k1`` ..."""
    if recording.refused:
        raise NotRecordable(recording.refused)
    writer = _Writer(recording, names)
    results = [recording.value(value) for value in (loss, *recorded.values())]
    for call in used(recording.calls, results):
        writer.add(call)
    outputs = ", ".join(writer.read(value) for value in results)
    lists = "t: List[Tensor], start: List[Tensor], c: List[Tensor], s: List[Tensor], f: List[float]"
    head = f"def step({lists}, x: Tensor, y: Tensor, seed: Tensor, k: List[Tensor]) -> List[Tensor]:"
    source = "\n".join([head, *(f"    {line}" for line in writer.lines), f"    return [{outputs}]", ""])
    constants, scratch = list(recording.constants.values()), list(recording.scratch.values())
    lists_of = (constants, scratch, writer.floats)
    return StepProgram(names, list(recorded), source, *lists_of, writer.written, writer.replaced)


def used(calls: Sequence[OperatorCall], results: Sequence[Value]) -> list[OperatorCall]:
    """Returns the calls that write to a tensor, or whose result is one of ``results`` or an argument of such a call."""
    needed, kept = set(results), []
    for call in reversed(calls):
        if any(call.writes()) or not needed.isdisjoint(values_in(call.results)):
            needed.update(values_in((call.args, call.kwargs)))
            kept.append(call)
    return kept[::-1]


class _Writer:
    """Writes calls as lines of TorchScript."""

    def __init__(self, recording: Recording, names: list[str]) -> None:
        self.lines: list[str] = []
        self.written: set[str] = set()
        self.replaced: set[str] = set()
        self.floats: list[float] = []
        self.numbers = {name: number for number, name in enumerate(names)}

    def add(self, call: OperatorCall) -> None:
        """Writes one call."""
        # TorchScript removes operators that only write to a list of tensors.
        if call.op.name() == "pfl_fast::sgd_":
            self._add_sgd(call)
            return
        if call.op.name() == "aten::_foreach_add_.Scalar":
            tensors, number = call.args
            for tensor in tensors:
                self.add(OperatorCall(torch.ops.aten.add_.Scalar, (tensor, number), {}, (None,)))
            return
        arguments = self._arguments(call)
        for value, only_writes in call.writes():
            self._note_write(value, only_writes)
        name = f"torch.ops.{call.op.namespace}.{call.op._opname}"
        targets = [self._target(result, number) for number, result in enumerate(call.results)]
        left = ", ".join(targets)
        self.lines.append((f"{left} = " if any(t != "_" for t in targets) else "") + f"{name}({', '.join(arguments)})")
        for result, target in zip(call.results, targets, strict=True):
            if isinstance(result, list):
                self.lines += [f"{value.name} = {target}[{n}]" for n, value in enumerate(result) if value]

    def read(self, value: Value) -> str:
        """Returns the expression of a value that is read: before its first update, the one in ``start``."""
        if value.name not in self.numbers:
            return self._expression(value)
        place = "t" if value.name in self.written else "start"
        return f"{place}[{self.numbers[value.name]}]"

    def _expression(self, value: Value) -> str:
        kind, number = value.name[:1], value.name[1:]
        return f"{kind}[{number}]" if kind in "csk" and number.isdigit() else value.name

    def _target(self, result: Any, number: int) -> str:
        if isinstance(result, list):
            return f"list{len(self.lines)}_{number}"
        is_new = result is not None and result.name.startswith("v") and result.name not in self.numbers
        return result.name if is_new else "_"

    def _note_write(self, value: Value, only_writes: bool) -> None:
        if value.name in self.numbers and value.name not in self.written:
            self.written.add(value.name)
            if only_writes:
                self.replaced.add(value.name)

    def _arguments(self, call: OperatorCall) -> list[str]:
        schema = {argument.name: argument for argument in call.op._schema.arguments}
        given = list(zip(schema, call.args, strict=False)) + list(call.kwargs.items())
        found: list[str] = []
        for name, value in given:
            argument = schema[name]
            writes = argument.alias_info is not None and argument.alias_info.is_write
            text = self._literal(value, str(argument.type), writes)
            if not found and str(argument.type) == "Tensor" and isinstance(value, (int, float)):
                text = f"torch.tensor({text})"
            found.append(f"{name}={text}" if argument.kwarg_only else text)
        return found

    def _literal(self, value: Any, type_name: str, writes: bool) -> str:
        if isinstance(value, Value):
            if writes and value.name in self.numbers:
                return f"t[{self.numbers[value.name]}]"
            return self.read(value)
        if isinstance(value, (list, tuple)):
            inner = type_name.removeprefix("Optional[").removeprefix("List[").rstrip("]")
            return f"[{', '.join(self._literal(item, inner, writes) for item in value)}]"
        if isinstance(value, torch.device):
            return f'torch.device("{value}")'
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "float" in type_name.lower():
            value = float(value)
        if isinstance(value, float):
            self.floats.append(value)
            return f"f[{len(self.floats) - 1}]"
        if value is None or isinstance(value, (bool, int, str, torch.dtype, torch.layout, torch.memory_format)):
            return repr(value)
        raise NotRecordable(f"an argument of type {type(value).__name__} has no form in TorchScript")

    def _add_sgd(self, call: OperatorCall) -> None:
        """Writes one call per tensor."""
        params, grads, buffers, centers, *options = call.args
        for n, (param, grad) in enumerate(zip(params, grads, strict=True)):
            own = [param, grad, buffers[n] if buffers else None, centers[n] if centers else None]
            for written in (param, own[2]):
                if written is not None:
                    self._note_write(written, only_writes=False)
            texts = [self._literal(v, "Tensor", writes=position in (0, 2)) for position, v in enumerate(own)]
            texts += [self._literal(option, "float", writes=False) for option in options]
            self.lines.append(f"torch.ops.pfl_fast.sgd_tensor_({', '.join(texts)})")
