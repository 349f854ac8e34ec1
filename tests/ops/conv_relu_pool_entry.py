"""The contract entry of ``conv_relu_pool``."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> tuple[Tensor, ...]:
    return (ops.conv_relu_pool(x, weight, bias, padding),)


def meaning(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> tuple[Tensor, ...]:
    return (reference.conv_relu_pool(x, weight, bias, padding),)


def script(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    return [torch.ops.pfl_fast.conv_relu_pool(x, weight, bias, 0)[0]]


def make(
    dtype: torch.dtype,
    *batch: int,
    size: tuple[int, int] = (8, 9),
    channels: int = 1,
    outputs: int = 3,
    kernel: int = 3,
) -> tuple[Tensor, ...]:
    """``batch`` ends with the number of samples."""
    generator = torch.Generator().manual_seed(5)
    shapes = (*batch, channels, *size), (*batch[:-1], outputs, channels, kernel, kernel), (*batch[:-1], outputs)
    x, weight, bias = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return x.to(dtype), (weight / (kernel * channels**0.5)).to(dtype), (0.1 * bias).to(dtype)


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("one channel", make(dtype, 2)),
        Sample("padding", make(dtype, 2, size=(4, 5), channels=2, kernel=5), {"padding": 2}),
        Sample("clients", make(dtype, 2, 2, 1, size=(5, 6), outputs=2), {"padding": 1}),
        Sample("a pixel", make(dtype, 1, size=(2, 3), outputs=4, kernel=1)),
        Sample("one window", make(dtype, 2, size=(8, 8), channels=3, outputs=2, kernel=7)),
        *[
            Sample(f"kernels of {k}", make(dtype, 2, size=(12, 11), channels=2, outputs=18, kernel=k))
            for k in range(1, 8)
        ],
        *[Sample(f"{o} channels out", make(dtype, 2, size=(10, 12), outputs=o)) for o in (1, 16, 17, 33, 47, 64)],
        Sample("many channels in", make(dtype, 2, size=(7, 7), channels=9, outputs=5)),
        Sample("tiles", make(dtype, 2, size=(8, 9), channels=8, outputs=3, kernel=5)),
        Sample("tiles of clients", make(dtype, 2, 2, 3, size=(9, 12), channels=9, outputs=17, kernel=5)),
        Sample("tiles, padding", make(dtype, 5, size=(18, 15), channels=33, outputs=40, kernel=5), {"padding": 3}),
        Sample("enough for threads", make(dtype, 3, 4, size=(28, 28), outputs=32, kernel=5)),
        Sample("colours", make(dtype, 5, size=(32, 32), channels=3, outputs=32, kernel=5), {"padding": 2}),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no samples", make(torch.float32, 0)),
        Sample("clients without samples", make(torch.float32, 2, 0)),
        Sample("tiles without samples", make(torch.float32, 2, 0, channels=8, kernel=5)),
        Sample("no clients", make(torch.float32, 0, 3)),
    ]


def raw_calls():
    x, weight, bias = make(torch.float64, 2, 2)
    raw = torch.ops.pfl_fast
    out, index = raw.conv_relu_pool(x, weight, bias, 0)
    tracked = [t.clone().requires_grad_() for t in (x, weight, bias)]
    return [
        (raw.conv_relu_pool.default, (*tracked, 0)),
        (raw.conv_relu_pool.default, (x, *tracked[1:], 2)),
        (raw.conv_relu_pool_backward.default, (out, x, weight, index, 0, True, True)),
        (raw.conv_relu_pool_backward.default, (out, x, weight, index, 0, True, False)),
        (raw.conv_relu_pool_backward.default, (out.contiguous(), x, weight, index, 0, False, True)),
    ]


def bad_inputs() -> list[BadInput]:
    op = ops.conv_relu_pool
    x, w, b = make(torch.float32, 2)
    large = torch.ones(3, 1, 8, 8)
    return [
        BadInput("list", lambda: op([1.0], w, b), r"conv_relu_pool: x must be a tensor, got list"),
        BadInput("no bias", lambda: op(x, w, None), r"conv_relu_pool: bias must be a tensor, got NoneType"),
        BadInput("integers", lambda: op(x.long(), w, b), r"conv_relu_pool: x must be float64.*got .*(Long|int64)"),
        BadInput("one image", lambda: op(x[0], w, b), r"x must be \[\*batch, b, c, h, w\], got shape \[1, 8, 9\]"),
        BadInput("dtypes", lambda: op(x, w.double(), b), r"weight must have the dtype of x.*got .*(Double|float64)"),
        BadInput("dtype of bias", lambda: op(x, w, b.half()), r"bias must have the dtype of x.*got .*(Half|float16)"),
        BadInput("devices", lambda: op(x, w, b.to("meta")), r"bias must be on the device of x.*meta"),
        BadInput("channels", lambda: op(x, w.repeat(1, 2, 1, 1), b), r"weight must be .*c of x.*got \[3, 2, 3, 3\]"),
        BadInput("clients", lambda: op(x, w[None], b), r"weight must be .*batch.*got \[1, 3, 1, 3, 3\]"),
        BadInput("a vector", lambda: op(x, b, b), r"weight must be .*got \[3\]"),
        BadInput("not square", lambda: op(x, w[..., :2], b), r"weight must be .*k, k\].*got \[3, 1, 3, 2\]"),
        BadInput("large kernel", lambda: op(x, large, b), r"k from 1 to 7.*got \[3, 1, 8, 8\].*run as conv2d"),
        BadInput("no outputs", lambda: op(x, w[:0], b[:0]), r"at least one channel, got \[0, 1, 3, 3\]"),
        BadInput("bias", lambda: op(x, w, b[:2]), r"bias must be \[\*batch, o\] \w+ weight.*got \[2\]"),
        BadInput("padding", lambda: op(x, w, b, 3), r"padding must be from 0 to k - 1 = 2, got 3"),
        BadInput("negative padding", lambda: op(x, w, b, -1), r"padding must be from 0 to k - 1 = 2, got -1"),
        BadInput("small", lambda: op(x[..., :3], w, b), r"x must be at least 4 pixels high and wide.*got.*8, 3\]"),
    ]


OPERATOR = Operator(
    name="conv_relu_pool",
    call=call,
    reference=meaning,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0), (None, 0, 0), (1, None, None), (4, 2, 1), (0, 0, None)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["conv_relu_pool", "conv_relu_pool_backward"],
    twice_differentiable=False,
)
