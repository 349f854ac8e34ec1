"""Emulation cases of csrc/ops/aggregate/cuda_kernel.cu: awkward sizes, every type, every path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call

OPERATOR = "aggregate"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    numels: tuple[int, ...] = (7,)
    clients: int = 3
    mixtures: int = 1
    groups: int = 1
    shift: int = 0  # elements by which rows are moved off their alignment
    gap: int = 0  # elements between rows
    table: bool = False  # rows as separate tensors, as from state dicts
    bad: bool = False  # some values are NaN or infinite
    parts: int = 2  # sets of partial sums of the backward
    needs: tuple[bool, bool] = (True, True)


CASES = [
    *[Case(f"sizes {n} {dtype}", dtype, (n,)) for dtype in TYPES for n in (1, 31, 512, 513, 2053)],
    *[Case(f"clients {n}", clients=n, numels=(67,)) for n in (1, 2, 9)],
    *[Case(f"mixtures {m} {dtype}", dtype, (5, 600), mixtures=m) for dtype in TYPES for m in (2, 4, 5, 9)],
    *[
        Case(f"bad values {dtype}", dtype, (40, 700), clients=4, mixtures=m, bad=True)
        for dtype in TYPES
        for m in (1, 6)
    ],
    Case("no clients", clients=0, numels=(5,)),
    Case("empty tensors", numels=(0, 3, 0, 530, 0)),
    Case("all empty", numels=(0, 0)),
    Case("more tensors than one launch holds", numels=tuple(i % 5 for i in range(170)), clients=2),
    Case("groups", numels=(5, 300, 5, 300), groups=2, mixtures=2, bad=True),
    Case("misaligned", numels=(64, 513), shift=1),
    Case("gap that keeps alignment", numels=(64, 1024), gap=16),
    Case("gap that breaks alignment", numels=(64, 1024), gap=1, dtype=torch.float16),
    Case("separate rows", numels=(64, 513), table=True, clients=5),
    Case("many tiles for few blocks", numels=(2600, 1300), mixtures=3, clients=6, parts=1),
    Case("only rows", numels=(600,), mixtures=2, needs=(True, False)),
    Case("only weights", numels=(600,), mixtures=2, needs=(False, True)),
]

# For the memory traffic report: 20 clients, one average, and one mixture per client.
TYPICAL = [
    Case("average", numels=(20000, 512), clients=20, parts=64),
    Case("mixture per client", numels=(20000, 512), clients=20, mixtures=20, parts=64),
]


class Problem:
    """Tensors of one case, the launcher calls, and the comparison of their results."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        self.sum_type = torch.promote_types(case.dtype, torch.float32)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)

        self.stacked = [self._rows(random(case.clients, n)) for n in case.numels]
        self.weights = random(case.groups, case.mixtures, case.clients).to(self.sum_type)
        self.grads = [random(case.mixtures, n) for n in case.numels]
        self.out = [torch.full((case.mixtures, n), -7.0).to(case.dtype) for n in case.numels]
        self.counts = torch.zeros(case.groups, case.clients, dtype=torch.int64)
        self.grad_rows = [torch.full((case.clients, n), -7.0).to(case.dtype) for n in case.numels]
        self.partial = torch.zeros(case.parts, case.groups, case.mixtures, case.clients, dtype=torch.float64)
        # The backward reads finite values: a NaN there would hide every other difference.
        self.backward_stacked = [x.clone() if case.bad else x for x in self.stacked]
        if case.bad:
            for t, x in enumerate(self.stacked):
                x[t % case.clients, -1] = float("nan")
                x[-1, :3] = float("inf")
        self.calls = self._calls(seed)

    def _rows(self, values: Tensor) -> Tensor:
        case = self.case
        clients, numel = values.shape
        stride = numel + case.gap
        base = torch.full((clients * stride + case.shift,), 99.0).to(case.dtype)
        rows = base[case.shift :].as_strided((clients, numel), (stride, 1), case.shift)
        return rows.copy_(values)

    def _calls(self, seed: int) -> list[Call]:
        case = self.case
        dtype = TYPES.index(case.dtype)
        sizes = [dtype, len(case.numels), case.groups, case.mixtures, case.clients]

        def rows(stacked: Sequence[Tensor]) -> list[object]:
            table = [row for x in stacked for row in x] if case.table else None
            return [list(stacked), [x.stride(0) for x in stacked], list(case.numels), table]

        forward = [*sizes, *rows(self.stacked), self.weights, self.out, self.counts]
        grad_rows = self.grad_rows if case.needs[0] else None
        grad_weights = self.partial if case.needs[1] else None
        backward = [*sizes, *rows(self.backward_stacked), self.weights, self.grads, grad_rows, grad_weights, case.parts]
        calls = [Call("pfl_cuda_aggregate", forward, seed)]
        return [*calls, Call("pfl_cuda_aggregate_backward", backward, seed)] if not case.table else calls

    def check(self) -> None:
        """Compares every result with plain torch."""
        case = self.case
        per_group = len(case.numels) // case.groups

        def close(actual: Tensor, expected: Tensor, what: str, scale: float = 1.0) -> None:
            assert_close(actual.to(case.dtype), expected.to(case.dtype), f"{case.name}: {what}", scale)

        if ops.uses_native():
            exact, counts = torch.ops.pfl_fast.aggregate(self.stacked, self.weights, True)
            for t, (mine, cpu) in enumerate(zip(self.out, exact, strict=True)):
                assert torch.equal(mine.isnan(), cpu.isnan())  # NaN payloads may differ
                same = same_bits(mine.nan_to_num(nan=0), cpu.nan_to_num(nan=0))
                assert same, f"{case.name}: out[{t}] is not the CPU kernel's, bit for bit"
            assert torch.equal(counts, self.counts), f"{case.name}: counts differ from the CPU kernel's"
        grad_weights = torch.zeros_like(self.weights)
        for t, x in enumerate(self.stacked):
            w = self.weights[t // per_group]
            close(self.out[t], reference.aggregate([x], w)[0], f"out[{t}]")
            if case.table:
                continue
            clean, g = self.backward_stacked[t].to(self.sum_type), self.grads[t].to(self.sum_type)
            if case.needs[0]:
                close(self.grad_rows[t], w.T @ g, f"grad_rows[{t}]")
            grad_weights[t // per_group] += g @ clean.T
        if case.needs[1] and not case.table:
            close(self.partial[0], grad_weights, "grad_weights", scale=max(1.0, max(case.numels) ** 0.5))
        for group in range(case.groups):
            mine = self.stacked[group * per_group : (group + 1) * per_group]
            expected = reference.count_nonfinite(mine, case.clients)
            assert torch.equal(self.counts[group], expected), f"{case.name}: counts of group {group}"
