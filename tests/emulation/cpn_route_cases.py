"""Emulation cases of csrc/ops/cpn_route/cuda_kernel.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close
from tests.emulation.harness import Call
from tests.emulation.route_cases import shifted

OPERATOR = "cpn_route"
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
    rows_per_part: int = 2
    shared: bool = False  # all clients have one gamma and beta
    flat: bool = False  # rows without variance
    mean: float = 0.0  # of the logits


CASES = [
    *[
        Case(f"{n} features {dtype} {noisy}", dtype, features=n, noisy=noisy)
        for dtype in TYPES
        for n in (1, 8, 13, 64)
        for noisy in (False, True)
    ],
    *[Case(f"more than a block {dtype}", dtype, 1, 3, 1037, tau=0.5) for dtype in TYPES],
    *[Case(f"one part {dtype}", dtype, rows_per_part=4) for dtype in TYPES],
    Case("several clients", clients=3, rows=7, features=12, rows_per_part=3),
    Case("one gamma for all", clients=3, shared=True),
    Case("no variance", flat=True),
    Case("a mean far above the deviation", features=64, mean=100.0),
    *[Case(f"misaligned {dtype}", dtype, features=64, shift=1) for dtype in TYPES],
    Case("no clients", clients=0),
    Case("no rows", rows=0),
    Case("no features", features=0),
]
TYPICAL = [Case("20 clients", clients=20, rows=10, features=512)]  # for the memory traffic report


class Problem:
    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        c, b, k = case.clients, case.rows, case.features
        sum_type = torch.promote_types(case.dtype, torch.float32)

        def random(*shape: int) -> Tensor:
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            return shifted(values.to(case.dtype), case.shift)

        self.h, self.a = random(c, b, k), random(c, b, 2 * k)
        self.a += case.mean
        if case.flat:
            self.a.fill_(0.3)
        self.gamma, self.beta = (random(1 if case.shared else c, 2 * k) for _ in range(2))
        self.grads = random(c, b, k), random(c, b, k)
        self.seeds = 5 - 3 * torch.arange(c) if case.noisy else None
        self.parts = random(c, b, k), random(c, b, k)
        self.grad_h, self.grad_a = random(c, b, k), random(c, b, 2 * k)
        self.grad_gamma, self.grad_beta = random(c, 2 * k), random(c, 2 * k)
        parts = max(1, -(-b // case.rows_per_part))
        if parts == 1 and sum_type == case.dtype:
            sums = [self.grad_gamma, self.grad_beta]
        else:
            sums = [torch.full((c, parts, 2 * k), 99.0, dtype=sum_type) for _ in range(2)]
        sizes = [TYPES.index(case.dtype), c, b, k]
        stride = 0 if case.shared else 2 * k
        inputs = [self.h, self.a, self.seeds, float(case.tau), self.gamma, self.beta, stride, stride]
        stats = torch.full((c, b, 2), 99.0, dtype=sum_type)
        gradients = [self.grad_h, self.grad_a, *sums, parts, case.rows_per_part, self.grad_gamma, self.grad_beta]
        self.calls = [
            Call("pfl_cuda_cpn_route", [*sizes, *inputs, 1e-5, *self.parts, stats], seed),
            Call("pfl_cuda_cpn_route_backward", [*sizes, *inputs, stats, *self.grads, *gradients], seed),
        ]

    def check(self) -> None:
        """Compares with plain torch and with the CPU operator, whose sums over a row have another order."""
        case = self.case
        if case.features == 0:
            return
        c, width = case.clients, 2 * case.features
        gamma, beta = self.gamma.expand(c, width).clone(), self.beta.expand(c, width).clone()
        inputs = [t.clone().requires_grad_() for t in (self.h, self.a, gamma, beta)]
        mine = [*self.parts, self.grad_h, self.grad_a, self.grad_gamma, self.grad_beta]

        def compare(route: object, by: str) -> None:
            results = route(*inputs, 1e-5, self.seeds, case.tau)  # type: ignore[operator]
            gradients = torch.autograd.grad(results, inputs, self.grads)
            for i, (m, e) in enumerate(zip(mine, [*results, *gradients], strict=True)):
                scale = max(1.0, float(e.detach().abs().max())) if e.numel() else 1.0
                assert_close(m, e, f"{case.name}: {i} by {by}", scale=4 * scale)

        compare(reference.cpn_route, "the reference")
        if ops.uses_native():
            compare(ops.cpn_route, "the CPU operator")
