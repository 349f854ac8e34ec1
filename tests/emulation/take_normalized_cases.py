"""Emulation cases of csrc/ops/take_normalized/cuda_kernel.cu."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pfl_fast.ops import reference
from pfl_fast.testing import same_bits
from tests.emulation.harness import Call

OPERATOR = "take_normalized"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    height: int
    width: int
    channels: int
    index: tuple[int, ...] = (3, 0, 3)
    dtype: torch.dtype = torch.float32
    channels_last: bool = True
    shift: int = 0  # elements by which the result is moved off its alignment


CASES = [
    *[
        Case(*shape, dtype=dtype, channels_last=last)
        for shape in ((1, 1, 1), (3, 5, 1), (2, 2, 3), (7, 5, 3), (16, 16, 3), (11, 13, 7))
        for dtype in TYPES
        for last in (True, False)
    ],
    Case(1, 1, 3, tuple(i % 4 for i in range(700))),  # more images than a pack, a warp and a block have values
    Case(1, 1, 1, tuple(i % 4 for i in range(1027)), torch.float16),
    Case(5, 5, 3, shift=1),
    Case(5, 5, 3, (0, -1, 4, 3)),  # indices out of range give NaN without reading memory
    Case(5, 5, 3, ()),
    Case(0, 5, 3),
]
TYPICAL = [Case(28, 28, 1), Case(32, 32, 3), Case(32, 32, 3, channels_last=False)]  # for the memory traffic report


class Problem:
    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.case = case
        shape = (4, case.height, case.width, case.channels)
        self.images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        self.index = torch.tensor(case.index, dtype=torch.int64)
        sum_type = torch.promote_types(case.dtype, torch.float32)
        self.mean = torch.linspace(0.3, 0.6, case.channels, dtype=sum_type)
        self.std = self.mean / 2
        numel = len(case.index) * case.height * case.width * case.channels
        self.out = torch.full((numel + case.shift,), -7.0, dtype=case.dtype)[case.shift :]
        words = [
            *(TYPES.index(case.dtype), self.images, 4, case.height * case.width, case.channels),
            *(self.index, len(case.index), self.mean, self.std, int(case.channels_last), self.out),
        ]
        self.calls = [Call("pfl_cuda_take_normalized", words, seed)]

    def check(self) -> None:
        case = self.case
        exists = (self.index >= 0) & (self.index < 4)
        picks = self.index.where(exists, torch.zeros_like(self.index))
        expected = reference.take_normalized(self.images, picks, self.mean, self.std, case.channels_last, case.dtype)
        in_memory = expected.movedim(-3, -1) if case.channels_last else expected
        actual = self.out.view(in_memory.shape)
        assert same_bits(actual[exists], in_memory[exists]), case
        assert bool(actual[~exists].isnan().all()), case
