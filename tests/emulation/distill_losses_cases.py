"""Emulation cases of csrc/ops/distill_losses/cuda_kernel.cu: awkward sizes, every type, one part and several."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call

OPERATOR = "distill_losses"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    clients: int = 1
    rows: int = 3
    classes: int = 10
    scale: float = 1.0


CASES = [
    *[Case(f"{c} classes {dtype}", dtype, classes=c) for dtype in TYPES for c in (1, 2, 16, 17, 67)],
    *[Case(f"{r} rows {dtype}", dtype, rows=r, classes=5) for dtype in TYPES for r in (1, 16, 17, 64, 65, 131)],
    *[Case(f"clients {dtype}", dtype, clients=3, rows=10) for dtype in TYPES],
    *[Case(f"large logits {dtype}", dtype, rows=5, scale=30.0) for dtype in TYPES],
    Case("clients and parts", clients=65, rows=66, classes=2),
    Case("more classes than a tile of the CPU", clients=2, rows=2, classes=301),
    Case("no rows", rows=0),
    Case("no clients", clients=0),
]
TYPICAL = [Case("20 clients", clients=20, rows=10, classes=100)]  # for the memory traffic report


class Problem:
    """Tensors of one case, the launcher calls, and the comparison of their results."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        shape = case.clients, case.rows, case.classes
        sum_type = torch.promote_types(case.dtype, torch.float32)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.logits = [(case.scale * random(*shape)).to(case.dtype) for _ in range(3)]
        self.target = torch.randint(case.classes, shape[:2], generator=generator)
        self.cotangents = [random(case.clients).to(sum_type) for _ in range(4)]
        self.out = [torch.full((case.clients,), 0.0 if case.rows == 0 else -7.0, dtype=sum_type) for _ in range(4)]
        self.grads = [torch.full(shape, -7.0).to(case.dtype) for _ in range(3)]
        parts = (case.rows + 63) // 64
        partial = torch.full((case.clients, parts, 4), float("nan"), dtype=torch.float64)
        given = [TYPES.index(case.dtype), *shape, *self.logits, self.target]
        self.calls = [
            Call("pfl_cuda_distill_losses", [*given, partial, *self.out], seed),
            Call("pfl_cuda_distill_losses_backward", [*given, *self.cotangents, *self.grads], seed),
        ]

    def check(self) -> None:
        """Compares with plain torch, and bit for bit with the CPU kernel."""
        case = self.case
        leaves = [y.clone().requires_grad_() for y in self.logits]
        expected = reference.distill_losses(*leaves, self.target)
        gradients = torch.autograd.grad(expected, leaves, self.cotangents)
        for i, (mine, theirs) in enumerate(zip(self.out, expected, strict=True)):
            assert_close(mine, theirs.detach(), f"{case.name}: result {i}", scale=case.scale)
        for i, (mine, theirs) in enumerate(zip(self.grads, gradients, strict=True)):
            assert_close(mine, theirs, f"{case.name}: gradient {i}", scale=case.scale)
        if ops.uses_native():
            raw = torch.ops.pfl_fast
            exact = [
                *raw.distill_losses(*self.logits, self.target),
                *raw.distill_losses_backward(*self.cotangents, *self.logits, self.target),
            ]
            for mine, theirs in zip([*self.out, *self.grads], exact, strict=True):
                assert same_bits(mine, theirs), f"{case.name}: not the CPU kernel's bits"
