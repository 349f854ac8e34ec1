"""The contract entry of ``linear``."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    """The operator itself, as small products are left to torch by the function around it."""
    return (torch.ops.pfl_fast.linear.default(x, weight, bias),)


def meaning(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
    return (reference.linear(x, weight, bias),)


def script(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    return [torch.ops.pfl_fast.linear(x, weight, bias)]


def make(dtype: torch.dtype, *batch: int, inputs: int = 19, outputs: int = 5, bias: bool = True) -> tuple[Tensor, ...]:
    """``batch`` ends with the number of rows."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(*batch, inputs), (*batch[:-1], outputs, inputs), *[(*batch[:-1], outputs)] * bias]
    x, weight, *rest = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return tuple(t.to(dtype) for t in (x, weight / max(1, inputs) ** 0.5, *rest))


def mostly_zero(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    """One value of x in four is not zero."""
    return x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(6)) < 0.25), *rest


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("few of all", make(dtype, 3)),
        Sample("without bias", make(dtype, 2, inputs=8, outputs=3, bias=False)),
        Sample("clients", make(dtype, 2, 2, 3, inputs=7, outputs=2)),
        Sample("one of all", make(dtype, 1, inputs=1, outputs=1)),
        Sample("clients without bias", make(dtype, 2, 1, inputs=17, outputs=4, bias=False)),
        *[Sample(f"{b} rows", make(dtype, b, inputs=66, outputs=7)) for b in (4, 5, 6, 7, 10, 12, 13, 25)],
        *[
            Sample(f"{n} outputs", make(dtype, 4, inputs=20, outputs=n))
            for n in (1, 2, 15, 16, 17, 48, 49, 64, 65, 100)
        ],
        *[Sample(f"{k} inputs", make(dtype, 7, inputs=k, outputs=6)) for k in (15, 16, 63, 64, 65, 511, 513, 1030)],
        Sample("more than a strip", make(dtype, 8, inputs=1100, outputs=70)),
        Sample("mostly zero", mostly_zero(*make(dtype, 2, 24, inputs=330, outputs=105))),
        Sample("enough for threads", make(dtype, 3, 10, inputs=300, outputs=130)),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no rows", make(torch.float32, 0)),
        Sample("clients without rows", make(torch.float32, 2, 0)),
        Sample("no clients", make(torch.float32, 0, 3)),
        Sample("no inputs", make(torch.float32, 3, inputs=0)),
        Sample("no outputs", make(torch.float32, 3, outputs=0)),
        Sample("no inputs, no bias", make(torch.float32, 2, 3, inputs=0, bias=False)),
    ]


def raw_calls():
    x, weight, bias = make(torch.float64, 2, 3)
    raw = torch.ops.pfl_fast
    grad = raw.linear(x, weight, bias)
    tracked = [t.clone().requires_grad_() for t in (x, weight, bias)]
    return [
        (raw.linear.default, tuple(tracked)),
        (raw.linear.default, (x, tracked[1], None)),
        (raw.linear_backward.default, (grad, x, weight, True, True, True)),
        (raw.linear_backward.default, (grad, x, weight, True, False, False)),
        (raw.linear_backward.default, (grad, x, weight, False, True, False)),
        (raw.linear_backward.default, (grad, x, weight, False, False, True)),
    ]


def bad_inputs() -> list[BadInput]:
    op = ops.linear
    x, w, b = make(torch.float32, 32, inputs=300, outputs=200)  # enough for the native operator
    return [
        BadInput("list", lambda: op([1.0], w, b), r"linear: x must be a tensor, got list"),
        BadInput("bias is a number", lambda: op(x, w, 1.0), r"linear: bias must be a tensor, got float"),
        BadInput("integers", lambda: op(x.long(), w, b), r"linear: x must be float64.*got .*(Long|int64)"),
        BadInput("one row", lambda: op(x[0], w, b), r"x must be \[\*batch, b, k\], got shape \[300\]"),
        BadInput("dtypes", lambda: op(x, w.double(), b), r"weight must have the dtype of x.*got .*(Double|float64)"),
        BadInput("dtype of bias", lambda: op(x, w, b.half()), r"bias must have the dtype of x.*got .*(Half|float16)"),
        BadInput("devices", lambda: op(x, w, b.to("meta")), r"bias must be on the device of x.*meta"),
        BadInput("inputs", lambda: op(x, w[:, :299], b), r"weight must be .*the k of x.*got \[200, 299\]"),
        BadInput("clients", lambda: op(x, w[None], b), r"weight must be .*batch.*got \[1, 200, 300\]"),
        BadInput("other clients", lambda: op(x[None], w.expand(2, -1, -1), b), r"weight must be .*got \[2, 200, 300\]"),
        BadInput("a vector", lambda: op(x, b, b), r"weight must be .*got \[200\]"),
        BadInput("bias", lambda: op(x, w, b[:2]), r"bias must be \[\*batch, n\] \w+ weight.*got \[2\]"),
        BadInput("bias of a client", lambda: op(x, w, b[None]), r"bias must be \[\*batch, n\].*got \[1, 200\]"),
        BadInput("small", lambda: op(x[:2, :3], w[:2, :4], b[:2]), r"weight must be .*the k of x.*got \[2, 4\]"),
        BadInput("small bias", lambda: op(x[:2], w[:2], b), r"bias must be .*got \[200\]"),
    ]


OPERATOR = Operator(
    name="linear",
    call=call,
    reference=meaning,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0), (None, 0, 0), (1, None, None), (2, 1, 1), (0, 0, None)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["linear", "linear_backward"],
    twice_differentiable=False,
)
