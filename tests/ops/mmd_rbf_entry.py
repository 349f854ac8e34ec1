"""Samples and errors of ``mmd_rbf`` for the contract test."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample

FEDCP = (10.0, 15.0, 20.0, 50.0)


def call(x: Tensor, y: Tensor, bandwidths=FEDCP) -> tuple[Tensor, ...]:
    return (ops.mmd_rbf(x, y, bandwidths),)


def expected(x: Tensor, y: Tensor, bandwidths=FEDCP) -> tuple[Tensor, ...]:
    return (reference.mmd_rbf(x, y, bandwidths),)


def script(x: Tensor, y: Tensor) -> list[Tensor]:
    return [torch.ops.pfl_fast.mmd_rbf(x, y, [10.0, 15.0, 20.0, 50.0])[0]]


def make(dtype: torch.dtype, *shape: int, scale: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    x, y = (scale * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return x.to(dtype), (y + 0.5 * scale).to(dtype)


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("one client", make(dtype, 5, 7)),
        Sample("matrix products", make(dtype, 17, 9)),
        Sample("one point", make(dtype, 1, 3)),
        Sample("clients", make(dtype, 2, 3, 4, 5)),
        Sample("one bandwidth, one feature", make(dtype, 4, 1), {"bandwidths": [0.7]}),
        Sample("many bandwidths", make(dtype, 3, 2), {"bandwidths": [0.5 * 1.3**i for i in range(32)]}),
        Sample("more points than a block, more features than a tile", make(dtype, 2, 37, 1031, scale=0.1)),
        Sample("more points than a chunk", make(dtype, 259, 3)),
        Sample("too far for products", make(dtype, 2, 70, 40, scale=9.0)),
        Sample("enough for threads", make(dtype, 3, 20, 700, scale=0.2)),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no points", make(torch.float32, 0, 3)),
        Sample("no features", make(torch.float32, 3, 0)),
        Sample("no clients", make(torch.float32, 0, 3, 2)),
        Sample("clients without points", make(torch.float32, 2, 0, 2)),
    ]


def raw_calls():
    x, y = make(torch.float64, 2, 3, 5)
    raw = torch.ops.pfl_fast
    value, weights = raw.mmd_rbf(x, y, FEDCP)
    tracked = x.clone().requires_grad_(), y.clone().requires_grad_()
    return [
        (raw.mmd_rbf.default, (*tracked, FEDCP)),
        (raw.mmd_rbf.default, (x, tracked[1], [2.0])),
        (raw.mmd_rbf_backward.default, (value, x, y, weights, True, True)),
        (raw.mmd_rbf_backward.default, (value, x, y, weights, True, False)),
        (raw.mmd_rbf_backward.default, (value, x, y, weights, False, True)),
    ]


def bad_inputs() -> list[BadInput]:
    x, mmd = torch.ones(3, 2), ops.mmd_rbf
    return [
        BadInput("shapes", lambda: mmd(x, x[:2]), r"mmd_rbf: y must have the shape of x, \[3, 2\], got \[2, 2\]"),
        BadInput("no points", lambda: mmd(x[0], x[0]), r"mmd_rbf: x must be \[\*batch, points.*got shape \[2\]"),
        BadInput("dtypes", lambda: mmd(x, x.double()), r"mmd_rbf: y must have the dtype of x.*got .*(Double|float64)"),
        BadInput("integers", lambda: mmd(x.long(), x), r"mmd_rbf: x must be float64.*got .*(Long|int64)"),
        BadInput("devices", lambda: mmd(x, x.to("meta")), r"mmd_rbf: y must be on the device of x.*meta"),
        BadInput("list", lambda: mmd([1.0], x), r"mmd_rbf: x must be a tensor, got list"),
        BadInput("number", lambda: mmd(x, 1.0), r"mmd_rbf: y must be a tensor, got float"),
        BadInput("none", lambda: mmd(x, x, []), r"mmd_rbf: bandwidths must hold 1 to 32 numbers, got 0"),
        BadInput("too many", lambda: mmd(x, x, [1.0] * 33), r"mmd_rbf: bandwidths must hold 1 to 32 numbers, got 33"),
        BadInput("zero", lambda: mmd(x, x, [1.0, 0.0]), r"mmd_rbf: bandwidths must be finite and greater.*got 0"),
        BadInput("negative", lambda: mmd(x, x, [-2.0]), r"mmd_rbf: bandwidths must be finite and greater.*got -2"),
        BadInput("NaN", lambda: mmd(x, x, [torch.nan]), r"mmd_rbf: bandwidths must be finite and greater.*got -?nan"),
        BadInput("not a list", lambda: mmd(x, x, 3.0), r"mmd_rbf: bandwidths must be a sequence.*got float"),
    ]


OPERATOR = Operator(
    name="mmd_rbf",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0), (None, 0), (1, None), (2, 1)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["mmd_rbf", "mmd_rbf_backward"],
    twice_differentiable=False,
)
