"""Samples and errors of ``aggregate`` for the contract test."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(weights: Tensor, *stacked: Tensor) -> tuple[Tensor, ...]:
    return tuple(ops.aggregate(list(stacked), weights))


def expected(weights: Tensor, *stacked: Tensor) -> tuple[Tensor, ...]:
    return tuple(reference.aggregate(stacked, weights))


def script(weights: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    results, _ = torch.ops.pfl_fast.aggregate([a, b], weights, False)
    return results


def make(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("two tensors", make(dtype, (4,), (4, 3, 2), (4, 5))),
        Sample("one client", make(dtype, (1,), (1, 7))),
        Sample("scalars", make(dtype, (3,), (3,))),
        Sample("mixtures", make(dtype, (5, 3), (3, 2, 2), (3, 1))),
        Sample("many mixtures", make(dtype, (11, 6), (6, 13))),
        Sample("primes and more than one tile", make(dtype, (7,), (7, 4099), (7, 31))),
        Sample("many clients", make(dtype, (257,), (257, 3))),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no clients", make(torch.float32, (0,), (0, 3))),
        Sample("no clients, mixtures", make(torch.float32, (2, 0), (0, 3))),
        Sample("no mixtures", make(torch.float32, (0, 2), (2, 3))),
        Sample("empty tensor", make(torch.float32, (2,), (2, 0), (2, 3))),
        Sample("no tensors", make(torch.float32, (2,))),
    ]


def raw_calls():
    weights, a, b = make(torch.float64, (2, 4), (4, 3, 2), (4, 5))
    tracked = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    grads = list(make(torch.float64, (2, 3, 2), (2, 5)))
    raw = torch.ops.pfl_fast
    return [
        (raw.aggregate.default, (tracked, weights.clone().requires_grad_(), True)),
        (
            raw.aggregate_into.default,
            ([torch.empty(2, 3, 2).double(), torch.empty(2, 5).double()], [a, b], weights, True),
        ),
        (raw.aggregate_rows.default, ([*a, *b], weights, True)),
        (raw.aggregate_backward.default, (grads, [a, b], weights, True, True)),
        (raw.aggregate_backward.default, (grads, [a, b], weights, True, False)),
    ]


def bad_inputs() -> list[BadInput]:
    x, w = torch.ones(3, 2), torch.ones(3)
    aggregate = ops.aggregate
    return [
        BadInput(
            "shapes", lambda: aggregate(x[:2], w), r"aggregate: stacked\[0\] must have 3 rows.*got shape \[2, 2\]"
        ),
        BadInput("second", lambda: aggregate([x, x[:2]], w), r"aggregate: stacked\[1\] must have 3 rows"),
        BadInput("scalar", lambda: aggregate(torch.tensor(1.0), w), r"aggregate: stacked\[0\] must have 3 rows"),
        BadInput("length", lambda: aggregate(x, torch.ones(4)), r"aggregate: stacked\[0\] must have 4 rows.*\[3, 2\]"),
        BadInput("weights 0-d", lambda: aggregate(x, torch.tensor(1.0)), r"aggregate: weights must be \[clients\]"),
        BadInput(
            "weights int", lambda: aggregate(x, w.long()), r"aggregate: weights must be float64.*got .*(Long|int64)"
        ),
        BadInput(
            "devices", lambda: aggregate([x, x.to("meta")], w), r"aggregate: stacked\[1\] must be on the device.*meta"
        ),
        BadInput(
            "integers", lambda: aggregate(x.long(), w), r"aggregate: stacked\[0\] must be float64.*got .*(Long|int64)"
        ),
        BadInput(
            "mixed", lambda: aggregate([x, x.double()], w), r"aggregate: stacked\[1\] must have the dtype of stacked"
        ),
        BadInput("NaN weights", lambda: aggregate(x, w * torch.nan), r"aggregate: weights must be finite, got .*nan"),
        BadInput("not a tensor", lambda: aggregate([[1.0]], w), r"aggregate: stacked\[0\] must be a tensor, got list"),
        BadInput("not a list", lambda: aggregate("x", w), r"aggregate: stacked must be a tensor or a list.*got str"),
        BadInput("list of weights", lambda: aggregate(x, [1.0]), r"aggregate: weights must be a tensor, got list"),
        BadInput("out count", lambda: aggregate([x], w, out=[]), r"aggregate: out must hold 1 tensors.*got 0"),
        BadInput("out shape", lambda: aggregate(x, w, out=torch.empty(3)), r"aggregate: out\[0\] must .*got .*\[3\]"),
        BadInput(
            "out dtype", lambda: aggregate(x, w, out=torch.empty(2).double()), r"aggregate: out\[0\] must .*ouble|64"
        ),
    ]


OPERATOR = Operator(
    name="aggregate",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0), (None, 0, 1), (None, None, 0), (0, None, None), (1, 1, None), (0, 2, None)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["aggregate", "aggregate_into", "aggregate_rows", "aggregate_backward"],
)
