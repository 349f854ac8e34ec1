"""Emulation cases of csrc/ops/sgd/cuda_kernel.cu: awkward sizes, every type, every option."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call

OPERATOR = "sgd"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
EVERYTHING = {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "proximal": 0.5}


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    columns: tuple[int, ...] = (7,)
    rows: int = 1
    gap: int = 0  # elements between the rows of parameters; twice that between the rows of gradients
    shift: int = 0  # elements by which tensors are moved off their alignment
    options: dict[str, Any] = field(default_factory=lambda: EVERYTHING)


CASES = [
    *[Case(f"sizes {n} {dtype}", dtype, (n,)) for dtype in TYPES for n in (1, 31, 1025, 2053)],
    *[
        Case(f"{options} {dtype}", dtype, (37,), options=options)
        for dtype in TYPES
        for options in (
            {},
            {"weight_decay": 0.1},
            {"proximal": 0.1},
            {"momentum": 0.9, "dampening": 0.3},
            {"momentum": 0.9, "dampening": 0.3, "first_step": True},
            {**EVERYTHING, "first_step": True},
        )
    ],
    Case("empty tensors", columns=(0, 3, 0, 530, 0)),
    Case("all empty", columns=(0, 0)),
    Case("no tensors", columns=()),
    Case("more tensors than one launch holds", columns=tuple(i % 5 for i in range(110))),
    Case("rows apart", columns=(5, 1030), rows=3, gap=3),
    Case("rows apart, aligned", columns=(8, 1032), rows=3, gap=8),
    Case("misaligned", columns=(64, 513), shift=1),
]
TYPICAL = [
    Case("everything", columns=(20000, 512)),
    Case("plain", columns=(20000, 512), options={}),
]  # for the memory traffic report


class Problem:
    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case

        def rows(columns: int, gap: int) -> Tensor:
            stride = columns + gap
            base = torch.full((case.rows * stride + case.shift,), 99.0).to(case.dtype)
            view = base.as_strided((case.rows, columns), (stride, 1), case.shift)
            return view.copy_(torch.randn(view.shape, generator=generator, dtype=torch.float64))

        gaps = (case.gap, 2 * case.gap, 0, case.gap)
        self.given = [[rows(n, gap) for n in case.columns] for gap in gaps]
        self.params, self.grads, self.momenta, self.center = self.given
        self.before = [[x.clone() for x in tensors] for tensors in self.given]
        defaults = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "proximal": 0.0}
        self.options = {"lr": 0.1, **defaults, "nesterov": False, "first_step": False, **case.options}
        o = self.options
        words = [
            *(TYPES.index(case.dtype), len(case.columns), self.params, self.grads),
            self.momenta if o["momentum"] else None,
            self.center if o["proximal"] else None,
            [case.rows] * len(case.columns),
            list(case.columns),
            [x.stride(0) for together in zip(*self.given, strict=True) for x in together],
            *(float(o[name]) for name in ("lr", "momentum", "dampening", "weight_decay", "proximal")),
            *(int(o["nesterov"]), int(o["first_step"])),
        ]
        self.calls = [Call("pfl_cuda_sgd", words, seed)]

    def check(self) -> None:
        expected = [[x.clone() for x in tensors] for tensors in self.before]
        reference.sgd_(*expected, **self.options)
        exact = [[x.clone() for x in tensors] for tensors in self.before]
        if ops.uses_native():
            ops.sgd_(*exact, **self.options)
        for mine, theirs, cpu in zip(self.given, expected, exact, strict=True):
            for t, (a, e, c) in enumerate(zip(mine, theirs, cpu, strict=True)):
                assert_close(a, e, f"{self.case.name}[{t}]")
                assert not ops.uses_native() or same_bits(a, c), f"{self.case.name}[{t}] is not the CPU kernel's"
