"""Samples and errors of ``orthogonal_project`` for the contract test.

Bases are not differentiated, so they are not among a sample's tensors but computed from options.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def bases(like: Tensor, ranks: tuple[int, int], per_client: bool) -> list[Tensor]:
    """Returns two bases, shared or per client; the contract needs them deterministic, not orthonormal."""
    batch = list(like.shape[:-2]) if per_client else []
    return [
        basis([*batch, like.shape[-1], rank], start).to(like.device, like.dtype) for start, rank in enumerate(ranks)
    ]


def basis(shape: list[int], start: int) -> Tensor:
    numel = 1
    for size in shape:
        numel *= size
    return (((torch.arange(numel) * 7919 + start) % 101 - 50).double() / (30 * max(1, shape[-2]) ** 0.5)).view(shape)


def call(f_g: Tensor, f_p: Tensor, ranks=(2, 3), per_client=False, alpha=0.3, relu=False) -> tuple[Tensor, ...]:
    return ops.orthogonal_project(f_g, f_p, *bases(f_g, ranks, per_client), alpha, relu)


def expected(f_g: Tensor, f_p: Tensor, ranks=(2, 3), per_client=False, alpha=0.3, relu=False) -> tuple[Tensor, ...]:
    return reference.orthogonal_project(f_g, f_p, *bases(f_g, ranks, per_client), alpha, relu)


def script(f_g: Tensor, f_p: Tensor) -> list[Tensor]:
    n = torch.arange(21)
    basis_g = ((n[:14] * 7919 % 101 - 50).double() / (30 * 7**0.5)).view(7, 2).float()
    basis_p = (((n * 7919 + 1) % 101 - 50).double() / (30 * 7**0.5)).view(7, 3).float()
    g, p, fused, inner = torch.ops.pfl_fast.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.3, False)
    return [g, p, fused, inner]


def make(dtype: torch.dtype, *shape: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("one client", make(dtype, 4, 7)),
        Sample("relu", make(dtype, 5, 6), {"relu": True}),
        Sample("a basis per client", make(dtype, 2, 3, 5, 6), {"per_client": True, "alpha": -0.5}),
        Sample("rank 0", make(dtype, 3, 4), {"ranks": (0, 2)}),
        Sample("full rank, one sample", make(dtype, 1, 5), {"ranks": (5, 5), "relu": True, "alpha": 1.5}),
        Sample("primes", make(dtype, 2, 13, 131), {"ranks": (17, 29), "relu": True}),
        Sample("more than any tile", make(dtype, 3, 37, 293), {"ranks": (131, 8), "per_client": True}),
        Sample("whole vectors", make(dtype, 16, 64), {"ranks": (16, 24)}),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no samples", make(torch.float32, 0, 6)),
        Sample("no features", make(torch.float32, 3, 0), {"ranks": (0, 0)}),
        Sample("no clients", make(torch.float32, 0, 3, 6), {"per_client": True}),
        Sample("both ranks 0", make(torch.float32, 3, 4), {"ranks": (0, 0), "relu": True}),
    ]


def raw_calls():
    f_g, f_p = make(torch.float64, 2, 4, 7)
    basis_g, basis_p = bases(f_g, (2, 3), True)
    raw = torch.ops.pfl_fast
    g, p, fused, inner = raw.orthogonal_project(f_g, f_p, basis_g, basis_p, 0.3, True)
    tracked = f_g.clone().requires_grad_(), f_p.clone().requires_grad_()
    saved = g, p, basis_g, basis_p, 0.3, True
    return [
        (raw.orthogonal_project.default, (*tracked, basis_g, basis_p[0], 0.3, True)),
        (raw.orthogonal_project.default, (f_g, tracked[1], basis_g, basis_p, 0.3, False)),
        (raw.orthogonal_project_backward.default, (g, p, fused, inner, *saved, True, True)),
        (raw.orthogonal_project_backward.default, (None, None, fused, None, *saved, True, False)),
        (raw.orthogonal_project_backward.default, (None, None, None, inner, *saved, False, True)),
    ]


def bad_inputs() -> list[BadInput]:
    f, a, project = torch.ones(3, 4), torch.eye(4)[:, :2], ops.orthogonal_project
    stacked = torch.ones(2, 3, 4)
    op = "orthogonal_project: "
    return [
        BadInput("shapes", lambda: project(f, f[:2], a, a, 0.5), op + r"f_p must have the shape of f_g.*got \[2, 4\]"),
        BadInput("no samples", lambda: project(f[0], f[0], a, a, 0.5), op + r"f_g must be \[\*batch, samples.*\[4\]"),
        BadInput("basis", lambda: project(f, f, a[:3], a, 0.5), op + r"basis_g must be \[features, rank\].*\[3, 2\]"),
        BadInput("flat", lambda: project(f, f, a, a[0], 0.5), op + r"basis_p must be \[features, rank\].*shape \[2\]"),
        BadInput(
            "clients",
            lambda: project(stacked, stacked, a, a.expand(3, 4, 2), 0.5),
            op + r"basis_p must be \[features, rank\] or \[\*batch.*got shape \[3, 4, 2\]",
        ),
        BadInput("integers", lambda: project(f.long(), f, a, a, 0.5), op + r"f_g must be float64.*got .*(Long|int64)"),
        BadInput(
            "dtypes", lambda: project(f, f.double(), a, a, 0.5), op + r"f_p must have the dtype of f_g.*(ouble|float64)"
        ),
        BadInput(
            "basis dtype",
            lambda: project(f, f, a.double(), a, 0.5),
            op + r"basis_g must have the dtype of f_g.*(ouble|float64)",
        ),
        BadInput(
            "device", lambda: project(f, f, a, a.to("meta"), 0.5), op + r"basis_p must be on the device of f_g.*meta"
        ),
        BadInput("alpha", lambda: project(f, f, a, a, torch.inf), op + r"alpha must be finite, got inf"),
        BadInput("alpha NaN", lambda: project(f, f, a, a, torch.nan), op + r"alpha must be finite, got nan"),
        BadInput("no number", lambda: project(f, f, a, a, "x"), op + r"alpha must be a number, got str"),
        BadInput("tensor", lambda: project(f, f, a, a, torch.ones(())), op + r"alpha must be a number, got Tensor"),
        BadInput("list", lambda: project([1.0], f, a, a, 0.5), op + r"f_g must be a tensor, got list"),
        BadInput("no basis", lambda: project(f, f, a, None, 0.5), op + r"basis_p must be a tensor, got NoneType"),
    ]


OPERATOR = Operator(
    name="orthogonal_project",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0), (None, 0), (1, None), (2, 1)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["orthogonal_project", "orthogonal_project_backward"],
    twice_differentiable=False,
)
