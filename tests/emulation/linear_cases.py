"""Emulation cases of csrc/cuda/linear_kernel.cu: awkward sizes, every type, every path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from pfl_fast.testing import assert_close, same_bits
from tests.emulation.harness import Call

SOURCE = "linear_kernel.cu"
EQUIVALENT = {
    "begin <= p.depth": "no terms past the end",
    "first_row + thread_row <= p.rows": "sums of a row that is not there, all zeros, are not stored",
}
LR = 0.1
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    clients: int = 1
    rows: int = 3
    inputs: int = 7
    outputs: int = 5
    bias: bool = True
    needs: tuple[bool, bool, bool] = (True, True, True)  # gradients of x, of weight, of bias
    gaps: int = 0  # values between the rows of all inputs
    shared: bool = False  # all clients share x and weight
    decay: float = 0.0
    elsewhere: bool = False  # the step starts from another tensor


CASES = [
    *[Case(f"{b} rows {t}", t, rows=b) for t in TYPES for b in (1, 4, 32, 33)],
    *[Case(f"{k} inputs {t}", t, inputs=k) for t in TYPES for k in (1, 31, 32, 64, 65)],
    *[Case(f"{n} outputs {t}", t, outputs=n) for t in TYPES for n in (1, 16, 63, 64, 65)],
    *[Case(f"clients {t}", t, clients=3, rows=34, inputs=66, outputs=67, gaps=3) for t in TYPES],
    *[Case(f"only {name}", needs=tuple(i == j for j in range(3))) for i, name in enumerate(("x", "weight", "bias"))],
    Case("nothing", needs=(False, False, False)),
    Case("without bias", clients=2, bias=False),
    *[Case(f"decay {t}", t, clients=2, gaps=2, decay=0.3) for t in TYPES],
    Case("from elsewhere", clients=2, gaps=1, elsewhere=True),
    Case("from elsewhere, decay", clients=3, shared=True, elsewhere=True, decay=0.3),
    Case("one x and weight for all clients", clients=3, shared=True),
    Case("many outputs", clients=3, rows=2, inputs=2, outputs=131),
    Case("no rows", clients=2, rows=0),
    Case("no inputs", clients=2, inputs=0),
    Case("no outputs", clients=2, outputs=0),
]
# For the memory traffic report: a batch of 10 in the hidden layer of a small CNN.
TYPICAL = [Case("CNN", rows=10, inputs=1024, outputs=512)]


class Problem:
    """Tensors of one case, the launcher calls, and the comparison of their results."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        b, k, n = case.rows, case.inputs, case.outputs

        def random(rows: int, columns: int) -> Tensor:
            values = torch.randn(case.clients, rows, columns + case.gaps, generator=generator, dtype=torch.float64)
            values = values.to(case.dtype)[..., :columns]
            return values[:1].expand(values.shape) if case.shared else values

        def unset(*shape: int) -> Tensor:
            return torch.full((case.clients, *shape), 99.0).to(case.dtype)

        self.x, self.weight, self.grad = random(b, k), random(n, k), random(b, n)
        self.bias = random(1, n)[:, 0] if case.bias else None
        self.out = unset(b, n)
        shapes = (b, k), (n, k), (n,)
        self.grads = [unset(*s) if needed else None for s, needed in zip(shapes, case.needs, strict=True)]
        sizes = [TYPES.index(case.dtype), case.clients, b, k, n]
        bias = [None, 0, 0] if self.bias is None else [self.bias, self.bias.stride(0), 0]
        self.calls = []
        if self.out.numel():
            words = [*sizes, *strided(self.x), *strided(self.weight), *bias, self.out]
            self.calls.append(Call("pfl_cuda_linear", words, seed))
        wanted = [g if g is not None and g.numel() else None for g in self.grads]
        given = [*strided(self.grad), *strided(self.x), *strided(self.weight)]
        self.calls.append(Call("pfl_cuda_linear_backward", [*sizes, *given, *wanted], seed))
        # The updated weight has gaps too, which must not be written.
        self.room = torch.full((case.clients, n, k + case.gaps), 99.0).to(case.dtype)
        self.stepped = self.room[..., :k]
        if not case.elsewhere:
            self.stepped.copy_(self.weight)
        if self.stepped.numel():
            start = strided(self.weight if case.elsewhere else self.stepped)
            words = [*sizes, *strided(self.grad), *strided(self.x), *start, *strided(self.stepped), LR, case.decay]
            self.calls.append(Call("pfl_cuda_linear_step", words, seed))

    def check(self) -> None:
        """Compares with plain torch in double, and gradients, whose sums have one order, with the CPU kernel's bits."""
        case = self.case
        inputs = [t.double() for t in (self.x, self.weight)] + ([] if self.bias is None else [self.bias.double()])
        expected = reference.linear(*inputs)
        assert_close(self.out, expected.to(case.dtype), f"{case.name}: out", 1.0 + case.inputs**0.5)
        grad = self.grad.double()
        gradients = grad @ inputs[1], grad.mT @ inputs[0], grad.sum(-2)
        for mine, e, name in zip(self.grads, gradients, ("x", "weight", "bias"), strict=True):
            if mine is not None:
                assert_close(mine, e.to(case.dtype), f"{case.name}: gradient of {name}", 10.0)
        expected = self.weight.double() - LR * (gradients[1] + case.decay * self.weight.double())
        assert_close(self.stepped, expected.to(case.dtype), f"{case.name}: step", 10.0)
        assert bool((self.room[..., case.inputs :] == 99).all()), f"{case.name}: the step wrote into gaps"
        if ops.uses_native():
            alone = self.weight.clone(memory_format=torch.contiguous_format)
            ops.linear_step_(alone, self.grad, self.x, lr=LR, weight_decay=case.decay)
            assert same_bits(self.stepped.contiguous(), alone), f"{case.name}: the step has not the CPU kernel's bits"
            exact = torch.ops.pfl_fast.linear_backward(self.grad, self.x, self.weight, *case.needs)
            for mine, e, name in zip(self.grads, exact, ("x", "weight", "bias"), strict=True):
                assert mine is None or same_bits(mine, e), f"{case.name}: {name} has not the CPU kernel's bits"


def strided(tensor: Tensor) -> list[Tensor | int]:
    return [tensor, tensor.stride(0), tensor.stride(1)]
