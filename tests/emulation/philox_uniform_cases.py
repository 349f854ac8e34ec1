"""Emulation cases of csrc/ops/philox_uniform/cuda_kernel.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pfl_fast.ops import reference
from pfl_fast.testing import same_bits
from tests.emulation.harness import Call

OPERATOR = "philox_uniform"


@dataclass(frozen=True)
class Case:
    seeds: tuple[int, ...]
    numel: int


CASES = [
    *[Case((7,), n) for n in (0, 1, 3, 4, 5, 257, 1024, 1027)],
    *[Case((1, -5, 2**62), n) for n in (1, 4, 6, 1031)],
    Case((), 5),
]

TYPICAL = [Case((1, 2), 20000)]


class Problem:
    def __init__(self, case: Case, seed: int) -> None:
        self.seeds = torch.tensor(case.seeds, dtype=torch.int64)
        self.out = torch.full((len(case.seeds), case.numel), -7.0)
        self.calls = [Call("pfl_cuda_philox_uniform", [self.seeds, len(case.seeds), case.numel, self.out], seed)]

    def check(self) -> None:
        assert same_bits(self.out, reference.philox_uniform(self.seeds, self.out.shape[1:]))
