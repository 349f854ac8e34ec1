"""Emulation cases of csrc/ops/route/cuda_kernel.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call

OPERATOR = "route"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    clients: int = 2
    rows: int = 3
    features: int = 7
    noisy: bool = True
    tau: float = 1.0
    shift: int = 0  # elements by which every tensor is moved off its alignment


CASES = [
    *[
        Case(f"{n} features {dtype} {noisy}", dtype, features=n, noisy=noisy)
        for dtype in TYPES
        for n in (1, 8, 13, 16, 131)
        for noisy in (False, True)
    ],
    *[Case(f"more than a block {dtype}", dtype, 1, 5, 523, tau=0.5) for dtype in TYPES],
    Case("whole packs in a whole block", clients=1, rows=64, features=16),
    Case("several clients", clients=5, rows=11, features=12),
    *[Case(f"misaligned {dtype}", dtype, features=64, shift=1) for dtype in TYPES],
    Case("no clients", clients=0),
    Case("no rows", rows=0),
    Case("no features", features=0),
]
TYPICAL = [Case("20 clients", clients=20, rows=10, features=512)]  # for the memory traffic report


def shifted(values: Tensor, shift: int) -> Tensor:
    base = torch.full((values.numel() + shift,), 99.0, dtype=values.dtype)
    return base[shift:].view(values.shape).copy_(values)


class Problem:
    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case

        def random(width: int, scale: float = 1.0) -> Tensor:
            shape = case.clients, case.rows, width
            values = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
            return shifted(values.to(case.dtype), case.shift)

        k = case.features
        self.h, self.a = random(k), random(2 * k, 3.0)
        self.grads = random(k), random(k)
        self.seeds = 5 - 3 * torch.arange(case.clients) if case.noisy else None
        self.parts = random(k), random(k)
        self.grad_h, self.grad_a = random(k), random(2 * k)
        sizes = [TYPES.index(case.dtype), case.clients, case.rows, k]
        inputs = [self.h, self.a, self.seeds, float(case.tau)]
        self.calls = [
            Call("pfl_cuda_route", [*sizes, *inputs, *self.parts], seed),
            Call("pfl_cuda_route_backward", [*sizes, *inputs, *self.grads, self.grad_h, self.grad_a], seed),
        ]

    def check(self) -> None:
        """Compares with plain torch and, except for double, whose exp is the library's, with the CPU kernel's bits."""
        case = self.case
        h, a = self.h.clone().requires_grad_(), self.a.clone().requires_grad_()
        expected = reference.route(h, a, self.seeds, case.tau)
        gradients = torch.autograd.grad(expected, [h, a], self.grads)
        mine = [*self.parts, self.grad_h, self.grad_a]
        for i, (m, e) in enumerate(zip(mine, [*expected, *gradients], strict=True)):
            assert_close(m, e, f"{case.name}: {i}", scale=3.0)
        if ops.uses_native() and case.dtype != torch.float64:
            raw = torch.ops.pfl_fast
            exact = raw.route(self.h, self.a, self.seeds, case.tau)
            exact_gradients = raw.route_backward(*self.grads, self.h, self.a, self.seeds, case.tau)
            for i, (m, e) in enumerate(zip(mine, [*exact, *exact_gradients], strict=True)):
                assert same_bits(m, e), f"{case.name}: result {i} is not the CPU kernel's, bit for bit"
