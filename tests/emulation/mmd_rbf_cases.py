"""Emulation cases of csrc/ops/mmd_rbf/cuda_kernel.cu: awkward sizes, every type, every path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast.ops import reference
from pfl_fast.testing import assert_close
from tests.emulation.harness import Call

OPERATOR = "mmd_rbf"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FEDCP = (10.0, 15.0, 20.0, 50.0)


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    clients: int = 1
    points: int = 5
    features: int = 7
    bandwidths: tuple[float, ...] = FEDCP
    needs: tuple[bool, bool] = (True, True)
    equal: bool = False  # y is x


CASES = [
    *[Case(f"points {n}", points=n) for n in (1, 2, 4, 15, 16, 17, 33, 67, 131)],
    *[Case(f"features {n} {dtype}", dtype, features=n) for dtype in TYPES for n in (1, 31, 32, 33, 131)],
    *[Case(f"clients {dtype}", dtype, clients=3, points=18, features=40) for dtype in TYPES],
    Case("no features", features=0),
    Case("one bandwidth", bandwidths=(0.5,)),
    Case("most bandwidths", bandwidths=tuple(1.0 + i for i in range(32))),
    Case("only x", clients=2, points=6, features=130, needs=(True, False)),
    Case("only y", clients=2, points=6, features=130, needs=(False, True)),
    Case("equal sets", points=19, features=37, equal=True),
]
# For the memory traffic report: a batch of FedCP.
TYPICAL = [Case("FedCP", points=10, features=512, needs=(True, False))]


class Problem:
    """Tensors of one case, the launcher calls, and the comparison of their results."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        sum_type = torch.promote_types(case.dtype, torch.float32)
        shape = case.clients, case.points, case.features

        def random() -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)

        self.x = random()
        self.y = self.x.clone() if case.equal else random()
        self.bandwidths = torch.tensor(case.bandwidths, dtype=torch.float64)
        self.weights = torch.full((case.clients, 3, case.points, case.points), -7.0, dtype=sum_type)
        self.sums = torch.full((case.clients, case.points), -7.0, dtype=sum_type)
        self.out = torch.full((case.clients,), -7.0, dtype=sum_type)
        self.grad = torch.linspace(-1, 2, case.clients, dtype=sum_type)
        self.grads = [torch.full(shape, -7.0).to(case.dtype) if needed else None for needed in case.needs]
        head = [TYPES.index(case.dtype), case.clients, case.points, case.features]
        forward = [*head, len(case.bandwidths), self.bandwidths, self.x, self.y, self.weights, self.sums, self.out]
        backward = [*head, self.grad, self.x, self.y, self.weights, *self.grads]
        self.calls = [Call("pfl_cuda_mmd_rbf", forward, seed)]
        if case.features:
            self.calls.append(Call("pfl_cuda_mmd_rbf_backward", backward, seed))

    def check(self) -> None:
        """Compares every result with plain torch in double, because the reference loses digits in float."""
        case = self.case
        x, y = (t.double().requires_grad_() for t in (self.x, self.y))
        value = reference.mmd_rbf(x, y, case.bandwidths)
        assert_close(self.out, value.to(self.out.dtype), f"{case.name}: out", scale=len(case.bandwidths))
        if case.equal:
            assert not self.out.any(), f"{case.name}: out"
        expected = torch.autograd.grad(value, [x, y], self.grad.double())
        for mine, theirs, name in zip(self.grads, expected, "xy", strict=True):
            if mine is not None:
                assert_close(mine, theirs.to(case.dtype), f"{case.name}: gradient of {name}")
        self._check_weights(x.detach(), y.detach())

    def _check_weights(self, x: Tensor, y: Tensor) -> None:
        for i, (a, b) in enumerate([(x, x), (y, y), (x, y)]):
            distances = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
            expected = sum((torch.exp(-distances / (2 * w)) / w for w in self.case.bandwidths), torch.zeros(()))
            assert_close(self.weights[:, i], expected.to(self.weights.dtype), f"{self.case.name}: weights {i}")
