"""Emulation cases of csrc/ops/gumbel_mask/cuda_kernel.cu: awkward sizes, every type, every path."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call

OPERATOR = "gumbel_mask"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    clients: int = 1
    numel: int = 7
    hard: bool = True
    noise: bool = True
    tau: float = 0.7
    threshold: float = 0.5
    shift: int = 0  # values by which rows are moved off their alignment
    gap: int = 0  # values between clients
    shared: bool = False  # all clients share one row of z
    scale: float = 1.0  # scale of the logits


CASES = [
    *[
        Case(f"{n} values {dtype} {'hard' if hard else 'soft'}", dtype, numel=n, hard=hard)
        for dtype in TYPES
        for n in (1, 3, 8, 31, 1025, 2053)
        for hard in (True, False)
    ],
    *[
        Case(f"clients {dtype} {'hard' if hard else 'soft'}", dtype, clients=5, numel=n, hard=hard, threshold=0.3)
        for dtype in TYPES
        for n in (5, 16, 67)
        for hard in (True, False)
    ],
    *[Case(f"no noise {hard}", numel=67, noise=False, hard=hard, threshold=0.7) for hard in (True, False)],
    *[Case(f"large logits {dtype}", dtype, numel=67, hard=False, tau=1e-3, scale=80.0) for dtype in TYPES],
    Case("logits at the threshold", noise=False, scale=0.0),
    Case("no values", clients=3, numel=0),
    Case("no clients", clients=0, numel=5),
    Case("misaligned", clients=2, numel=64, shift=1),
    Case("gap that keeps alignment", clients=3, numel=64, gap=16),
    Case("gap that breaks alignment", torch.float16, clients=3, numel=64, gap=1),
    Case("one row for all clients", clients=3, numel=37, shared=True),
]
TYPICAL = [Case("20 clients", clients=20, numel=10 * 512)]  # for the memory traffic report


class Problem:
    """Tensors of one case, the launcher calls, and the comparison of their results."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        shape = case.clients, case.numel

        def random(scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(case.dtype)

        def empty() -> Tensor:
            return torch.full(shape, -7.0).to(case.dtype)

        self.seeds = torch.arange(case.clients) * 2**33 - 5 if case.noise else None
        self.z, self.logits = self._rows(random()), self._rows(random(case.scale))
        if case.shared:
            self.z = self.z[:1].expand(shape)
        self.grads = random(), random()
        self.out, self.grad_out = (empty(), empty()), (empty(), empty())
        self.noisy = torch.full(shape, -7.0, dtype=torch.promote_types(case.dtype, torch.float32))
        mask = [
            *(TYPES.index(case.dtype), int(case.hard)),
            *(float(case.tau * math.log(case.threshold / (1 - case.threshold))), float(1 / case.tau)),
        ]
        clients = [*shape, self.seeds, self.z, self.logits, self.z.stride(0), self.logits.stride(0)]
        backward = [case.clients * case.numel, self.z.contiguous(), self.noisy, *self.grads, *self.grad_out]
        self.calls = [
            Call("pfl_cuda_gumbel_mask", [*mask, *clients, *self.out, self.noisy], seed),
            Call("pfl_cuda_gumbel_mask_backward", [*mask, *backward], seed),
        ]

    def _rows(self, values: Tensor) -> Tensor:
        case = self.case
        stride = case.numel + case.gap
        base = torch.full((case.clients * stride + case.shift,), 99.0).to(case.dtype)
        return base.as_strided((case.clients, case.numel), (stride, 1), case.shift).copy_(values)

    def check(self) -> None:
        """Compares with plain torch, and bit for bit with the CPU kernel."""
        case = self.case
        options = case.tau, case.threshold, case.hard
        z, logits = (t.clone().requires_grad_() for t in (self.z, self.logits))
        expected = reference.gumbel_mask(z, logits, self.seeds, *options)
        gradients = torch.autograd.grad(expected, (z, logits), self.grads)
        for name, mine, theirs in zip(
            ("selected", "rest", "grad_z", "grad_logits"),
            (*self.out, *self.grad_out),
            (*expected, *gradients),
            strict=True,
        ):
            # A small tau magnifies the rounding of logits + noise.
            scale = max(1.0, case.scale / case.tau)
            assert_close(mine, theirs.detach(), f"{case.name}: {name}", scale)
        if ops.uses_native():
            raw = torch.ops.pfl_fast
            exact = raw.gumbel_mask(self.z, self.logits, self.seeds, *options)
            exact += raw.gumbel_mask_backward(*self.grads, self.z, exact[2], *options)
            for mine, theirs in zip((*self.out, self.noisy, *self.grad_out), exact, strict=True):
                assert same_bits(mine, theirs), f"{case.name}: not the CPU kernel's bits"
