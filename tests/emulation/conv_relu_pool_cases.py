"""Emulation cases of csrc/ops/conv_relu_pool/cuda_kernel.cu: awkward sizes, every type, every path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call
from tests.ops.nonfinite import gradients_not_finite

OPERATOR = "conv_relu_pool"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    clients: int = 1
    samples: int = 2
    channels: int = 1
    size: tuple[int, int] = (8, 9)
    outputs: int = 3
    kernel: int = 3
    padding: int = 0
    needs: tuple[bool, bool] = (True, True)  # gradients of x, of weight and bias
    part_samples: int = 1  # samples per part
    shared: bool = False  # all clients share one batch of images
    channels_last: bool = False  # memory order of images, kernels and gradients
    special: tuple[str, float] | None = None  # tensor with one value that is NaN or infinite, and the value
    ties: bool = False  # small integers, so that many sums are equal or 0


CASES = [
    *[Case(f"kernels of {k} {dtype}", dtype, size=(k + 4, k + 3), kernel=k) for k in range(1, 8) for dtype in TYPES],
    *[Case(f"padding {n}", channels=2, size=(7, 6), kernel=4, padding=n) for n in range(4)],
    *[Case(f"{n} channels out", size=(6, 7), outputs=n) for n in (1, 31, 32, 33, 65)],
    *[Case(f"{n} columns", samples=1, size=(5, n + 2)) for n in (2, 3, 15, 16, 17, 18, 33)],
    *[Case(f"clients {dtype}", dtype, clients=3, channels=2, outputs=5, part_samples=2) for dtype in TYPES],
    *[Case(f"parts of {n}", clients=2, samples=5, size=(5, 6), part_samples=n) for n in (1, 2, 3, 5)],
    Case("one window", samples=1, size=(4, 4)),
    Case("many pixels", samples=3, size=(20, 14), part_samples=2),
    Case("many weights", clients=2, samples=1, channels=3, size=(6, 6), outputs=34, kernel=5),
    Case("many channels", samples=1, channels=9, size=(7, 8), outputs=5, kernel=5),
    Case("only x", channels=2, needs=(True, False)),
    Case("only weight", channels=2, needs=(False, True)),
    Case("no samples", clients=2, samples=0),
    Case("images of all clients", clients=3, channels=2, shared=True),
    *[Case(f"channels last {dtype}", dtype, clients=2, channels=3, channels_last=True) for dtype in TYPES],
    Case("ties", samples=3, size=(9, 10), outputs=9, ties=True),
    *[
        Case(f"{value} in {name}", channels=2, size=(9, 8), padding=1, special=(name, value))
        for name in ("x", "weight", "grad")
        for value in (torch.nan, torch.inf, -torch.inf)
    ],
]
# For the memory traffic report: a batch of MNIST, without gradients of the pixels.
TYPICAL = [Case("MNIST", samples=10, size=(28, 28), outputs=32, kernel=5, needs=(False, True))]


class Problem:
    """Tensors of one case, the launcher calls, and the comparison of their results."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        height, width = ((side + 2 * case.padding - case.kernel + 1) // 2 for side in case.size)
        kernels = case.outputs, case.channels, case.kernel, case.kernel
        sum_type = torch.promote_types(case.dtype, torch.float32)

        def random(*shape: int) -> Tensor:
            values = torch.randn(case.clients, *shape, generator=generator, dtype=torch.float64)
            return self._ordered((values.round() if case.ties else values).to(case.dtype))

        def unset(*shape: int, dtype: torch.dtype = case.dtype) -> Tensor:
            return torch.full((case.clients, *shape), 99.0).to(dtype)

        self.x = random(case.samples, case.channels, *case.size)
        if case.shared:
            self.x = self.x[:1].expand(self.x.shape)
        self.weight, self.bias = random(*kernels), random(case.outputs)
        results = case.samples, height, width, case.outputs
        self.out, self.index = unset(*results).movedim(-1, 2), unset(*results, dtype=torch.uint8).movedim(-1, 2)
        self.grad = random(case.samples, case.outputs, height, width)
        needs_x, needs_weight = case.needs
        if case.special is not None:
            name, value = case.special
            getattr(self, name)[0, 1, 1, 2, 2] = value
        self.grad_x = self._ordered(unset(case.samples, case.channels, *case.size)) if needs_x else None
        self.grad_weight = self._ordered(unset(*kernels)) if needs_weight else None
        self.grad_bias = unset(case.outputs)
        parts = -(-case.samples // case.part_samples)
        self.parts = unset(parts, case.channels * case.kernel**2 + 1, case.outputs, dtype=sum_type)
        sizes = [
            *(TYPES.index(case.dtype), case.clients, case.samples, case.channels, *case.size),
            *(case.outputs, case.kernel, case.padding, height, width),
        ]
        inputs = [*strided(self.x), *strided(self.weight)]
        forward = [*sizes, *inputs, self.bias, self.out, self.index]
        gradients = [*strided(self.grad_x), *strided(self.grad_weight), self.grad_bias]
        given = [*strided(self.grad), *strided(self.index), *inputs]
        self.calls = [
            *([Call("pfl_cuda_conv_relu_pool", forward, seed)] if case.samples else []),
            Call(
                "pfl_cuda_conv_relu_pool_backward",
                [*sizes, *given, *gradients, self.parts, parts, case.part_samples],
                seed,
            ),
        ]

    def _ordered(self, values: Tensor) -> Tensor:
        if not self.case.channels_last or values.dim() != 5:
            return values
        return values.movedim(2, -1).contiguous().movedim(-1, 2)

    def check(self) -> None:
        """Compares with plain torch in double, and results bit for bit with the CPU kernel unless it uses Winograd."""
        case = self.case
        if case.special is None:
            self._check_values()
        else:
            self._check_what_is_not_finite()
        if ops.uses_native() and not (case.kernel == 5 and case.channels >= 8):
            exact = torch.ops.pfl_fast.conv_relu_pool(self.x, self.weight, self.bias, case.padding)
            assert torch.equal(self.index, exact[1]), f"{case.name}: index"
            assert same_bits(self.out, exact[0]), f"{case.name}: not the CPU kernel's bits"

    def _check_what_is_not_finite(self) -> None:
        """Gradients are NaN or infinite where a term of their sum is, and nowhere else."""
        inputs = self.x[0], self.weight[0], self.index[0], self.grad[0]
        masks = gradients_not_finite(*inputs, self.case.padding)
        for grad, mask in zip((self.grad_x, self.grad_weight, self.grad_bias), masks, strict=True):
            assert torch.equal(~grad[0].isfinite(), mask), self.case.name

    def _check_values(self) -> None:
        case = self.case
        x, weight, bias = (t.double().requires_grad_() for t in (self.x, self.weight, self.bias))
        value = reference.conv_relu_pool(x, weight, bias, case.padding)
        gradients = torch.autograd.grad(value, [x, weight, bias], self.grad.double(), materialize_grads=True)
        scale = float(case.channels * case.kernel)
        assert_close(self.out, value.detach().to(case.dtype), f"{case.name}: out", scale)
        mine = self.grad_x, self.grad_weight, None if self.grad_weight is None else self.grad_bias
        for m, e, name in zip(mine, gradients, ("x", "weight", "bias"), strict=True):
            if m is not None:
                size = max(1.0, float(e.nan_to_num().abs().max()) if e.numel() else 1.0)
                assert_close(m, e.to(case.dtype), f"{case.name}: gradient of {name}", scale * size)


def strided(tensor: Tensor | None) -> list[Tensor | int | None]:
    return [None] + 5 * [0] if tensor is None else [tensor, *tensor.stride()]
