"""Emulation cases of csrc/ops/orthogonal_project/cuda_kernel.cu: awkward sizes, every type, every path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast.ops import reference
from pfl_fast.testing import assert_close
from tests.emulation.harness import Call

OPERATOR = "orthogonal_project"
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype = torch.float32
    clients: int = 1
    samples: int = 3
    features: int = 12
    ranks: tuple[int, int] = (3, 5)
    per_client: bool = False
    alpha: float = 0.3
    relu: bool = False
    cotangents: tuple[bool, bool, bool, bool] = (True, True, True, True)
    needs: tuple[bool, bool] = (True, True)


CASES = [
    *[Case(f"samples {n}", samples=n) for n in (1, 4, 5, 9)],
    *[Case(f"features {n} {t}", t, features=n, ranks=(1, 1)) for t in TYPES for n in (1, 128, 131)],
    *[Case(f"ranks {r}", features=70, ranks=r) for r in ((0, 0), (0, 7), (32, 33), (67, 31), (70, 70))],
    *[Case(f"relu {t}", t, clients=2, features=40, ranks=(8, 9), relu=True) for t in TYPES],
    *[Case(f"a basis per client {t}", t, clients=3, samples=6, features=37, per_client=True) for t in TYPES],
    *[Case(f"cotangent {i}", cotangents=tuple(j == i for j in range(4)), relu=i % 2 == 0) for i in range(4)],
    Case("no cotangents", cotangents=(False,) * 4),
    Case("only generic", needs=(True, False)),
    Case("only personal", needs=(False, True), alpha=1.7),
    Case("no features", features=0, ranks=(0, 0)),
    Case("no features, but columns", features=0, ranks=(33, 7)),
]
# For the memory traffic report: one batch of FediOS with 20 clients.
TYPICAL = [Case("FediOS", samples=10, features=512, ranks=(24, 24))]


class Problem:
    """Tensors of one case, the launcher calls, and the comparison of their results."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.case = case
        self.sum_type = torch.promote_types(case.dtype, torch.float32)
        full, per_sample = (case.clients, case.samples, case.features), (case.clients, case.samples)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)

        def fresh(*shape: int) -> Tensor:
            return torch.full(shape, -7.0).to(case.dtype)

        batch = [case.clients] if case.per_client else []
        q = torch.linalg.qr(
            torch.randn([*batch, case.features, case.features], generator=generator, dtype=torch.float64)
        ).Q
        self.bases = [q[..., : case.ranks[0]], q[..., case.features - case.ranks[1] :]]
        self.bases = [b.to(case.dtype).contiguous() for b in self.bases]
        self.features = [random(*full), random(*full)]
        self.out = [fresh(*full), fresh(*full), fresh(*full), fresh(*per_sample)]
        self.cotangents = [random(*full), random(*full), random(*full), random(*per_sample)]
        self.cotangents = [v if given else None for v, given in zip(self.cotangents, case.cotangents, strict=True)]
        self.grads = [fresh(*full) if needed else None for needed in case.needs]
        self.calls = self._calls(seed)

    def _calls(self, seed: int) -> list[Call]:
        case = self.case
        sizes = [TYPES.index(case.dtype), case.clients, case.samples, case.features, float(case.alpha), int(case.relu)]
        spaces: list[object] = []
        for basis, rank in zip(self.bases, case.ranks, strict=True):
            room = -(-rank // 16) * 16
            coordinates = torch.full((case.clients, case.samples, room), -7.0, dtype=self.sum_type)
            spaces += [basis, rank, case.features * rank if case.per_client else 0, coordinates, room]
        calls = [Call("pfl_cuda_orthogonal_project", [*sizes, *spaces, *self.features, *self.out], seed)]
        if case.features:
            backward = [*sizes, *spaces, *self.out[:2], *self.cotangents, *self.grads]
            calls.append(Call("pfl_cuda_orthogonal_project_backward", backward, seed))
        return calls

    def check(self) -> None:
        """Compares every result with plain torch."""
        case = self.case
        features = [f.clone().requires_grad_() for f in self.features]
        expected = reference.orthogonal_project(*features, *self.bases, case.alpha, case.relu)
        for mine, theirs, name in zip(self.out, expected, ("g", "p", "fused", "inner"), strict=True):
            assert_close(mine, theirs.detach(), f"{case.name}: {name}", scale=max(1.0, case.features**0.5))
        cotangents = [torch.zeros_like(e) if v is None else v for v, e in zip(self.cotangents, expected, strict=True)]
        gradients = torch.autograd.grad(expected, features, cotangents)
        for mine, theirs, name in zip(self.grads, gradients, ("f_g", "f_p"), strict=True):
            if mine is not None:
                assert_close(mine, theirs, f"{case.name}: gradient of {name}", scale=4.0)
