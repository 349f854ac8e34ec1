"""Emulation cases of csrc/ops/mix/cuda_kernel.cu: awkward sizes, every type, every kind of choice."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call

OPERATOR = "mix"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
TILE = 2048


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    columns: tuple[int, ...] = (7,)
    rows: int = 1
    segments: int = 1  # 0: a choice per element
    gap: int = 0  # elements between the rows of local tensors; twice that between rows of global ones
    shift: int = 0  # elements by which tensors are moved off their alignment
    hard: bool = False
    needs: tuple[bool, bool, bool] = (True, True, True)


CASES = [
    *[
        Case(f"sizes {n} {dtype} {segments}", dtype, (n,), segments=segments)
        for dtype in TYPES
        for n in (1, 31, 2053)
        for segments in (0, 1)
    ],
    *[Case(f"hard {s} {d}", d, (37, 530), segments=s, hard=True) for d in TYPES for s in (0, 2)],
    *[Case(f"rows {s}", columns=(5, 2100, 64), rows=3, segments=s, gap=3) for s in (0, 2, 4)],
    Case("rows apart, aligned", columns=(8, 2056), rows=3, gap=8, segments=2),
    Case("misaligned", columns=(64, 513), shift=1, segments=2),
    Case("misaligned elements", columns=(64, 513), shift=1, segments=0),
    Case("empty tensors", columns=(0, 3, 0, 530, 0), segments=3),
    Case("all empty", columns=(0, 0)),
    Case("no rows", columns=(3,), rows=0),
    Case("more tensors than one launch holds", columns=tuple(i % 5 for i in range(75)), rows=2, segments=3),
    Case("many tiles", columns=(TILE * 34 + 5,), segments=1),
    *[
        Case(f"needs {needs} {s}", columns=(40, 9), segments=s, needs=needs)
        for s in (0, 2)
        for needs in ((True, False, False), (False, True, False), (False, False, True))
    ],
]
TYPICAL = [
    Case("two segments", columns=(20000, 4000), segments=2),
    Case("elementwise", columns=(20000,), segments=0),
]  # for the memory traffic report


class Problem:
    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        self.sum_type = torch.promote_types(case.dtype, torch.float32)

        def rows(columns: int, gap: int) -> Tensor:
            stride = columns + gap
            base = torch.full((case.rows * stride + case.shift,), 99.0).to(case.dtype)
            view = base.as_strided((case.rows, columns), (stride, 1), case.shift)
            return view.copy_(torch.randn(view.shape, generator=generator, dtype=torch.float64))

        def choices(*shape: int) -> Tensor:
            c = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 0.5
            c.view(-1)[::5] = 0.5  # the threshold of hard choices
            return c.clamp(0, 1)  # about a quarter are 0 and a quarter are 1

        self.local = [rows(n, case.gap) for n in case.columns]
        self.global_ = [rows(n, 2 * case.gap) for n in case.columns]
        self.grads = [rows(n, case.gap) for n in case.columns]
        self.segment = [t % max(1, case.segments) for t in range(len(case.columns))]
        if case.segments:
            self.choice = choices(case.rows, case.segments).to(self.sum_type)
            self.choices = None
        else:
            self.choices = [rows(n, 0).copy_(choices(case.rows, n)) for n in case.columns]
        self.out, self.grad_local, self.grad_global, self.grad_choices = (
            [torch.full((case.rows, n), -7.0).to(case.dtype) for n in case.columns] for _ in range(4)
        )
        tiles = sum(case.rows * ((n + TILE - 1) // TILE) for n in case.columns)
        self.partial = torch.full((tiles,), float("nan"), dtype=torch.float64)
        self.grad_choice = torch.zeros(case.rows, case.segments, dtype=torch.float64)
        self.calls = self._calls(seed)

    def _calls(self, seed: int) -> list[Call]:
        case, count = self.case, len(self.case.columns)
        stride = []
        for t in range(count):
            choice = self.choices[t].stride(0) if self.choices else 0
            stride += [self.local[t].stride(0), self.global_[t].stride(0), choice, self.grads[t].stride(0)]
        tensors = [
            *(TYPES.index(case.dtype), count, int(case.hard), self.local, self.global_, self.choices),
            *([case.rows] * count, list(case.columns), stride),
            *(self.choice if case.segments else None, self.segment, case.segments),
        ]
        local, global_, choice = case.needs
        sums = choice and case.segments > 0
        backward = [
            self.grads,
            self.grad_local if local else None,
            self.grad_global if global_ else None,
            self.grad_choices if choice and not sums else None,
            self.partial if sums else None,
            self.grad_choice if sums else None,
        ]
        return [
            Call("pfl_cuda_mix", [*tensors, self.out], seed),
            Call("pfl_cuda_mix_backward", [*tensors, *backward], seed),
        ]

    def check(self) -> None:
        case = self.case
        name = case.name
        for t, n in enumerate(case.columns):
            x, y = (v[t].clone().requires_grad_() for v in (self.local, self.global_))
            if case.segments:
                c = self.choice[:, self.segment[t]].unsqueeze(1).expand(case.rows, n).clone().requires_grad_()
            else:
                c = self.choices[t].clone().requires_grad_()
            expected = reference.mix([x], [y], [c], hard=case.hard)[0]
            expected.backward(self.grads[t])
            assert_close(self.out[t], expected.detach(), f"{name}: out[{t}]")
            if case.needs[0]:
                assert_close(self.grad_local[t], x.grad, f"{name}: grad_local[{t}]")
            if case.needs[1]:
                assert_close(self.grad_global[t], y.grad, f"{name}: grad_global[{t}]")
            if case.needs[2] and not case.segments:
                assert_close(self.grad_choices[t], c.grad, f"{name}: grad_choices[{t}]")
        if case.needs[2] and case.segments:
            self._check_sums()
        if ops.uses_native() and case.columns:
            self._check_bits()

    def _check_sums(self) -> None:
        expected = torch.zeros_like(self.grad_choice)
        for t, s in enumerate(self.segment):
            difference = self.global_[t].double() - self.local[t].double()
            expected[:, s] += (self.grads[t].double() * difference).sum(1)
        scale = max(1.0, max(self.case.columns)) ** 0.5
        actual = self.grad_choice.to(self.sum_type)
        assert_close(actual, expected.to(self.sum_type), f"{self.case.name}: grad_choice", 3 * scale)

    def _check_bits(self) -> None:
        case = self.case
        choice, segments = ([self.choice], self.segment) if case.segments else (self.choices, [])
        given = (self.local, self.global_, choice, segments, case.hard)
        cpu = torch.ops.pfl_fast.mix(*given)
        grads = torch.ops.pfl_fast.mix_backward(self.grads, *given, *case.needs)
        mine = [self.out, self.grad_local if case.needs[0] else [], self.grad_global if case.needs[1] else []]
        for what, a, e in zip(("out", "grad_local", "grad_global"), mine, (cpu, *grads[:2]), strict=True):
            same = [same_bits(p, q) for p, q in zip(a, e, strict=True)]
            assert all(same), f"{case.name}: {what} is not the CPU kernel's, bit for bit"
