"""Samples and errors of ``distill_losses`` for the contract test."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    # The contract test scales tensors to make batches; targets must stay in range.
    return ops.distill_losses(y_g, y_p, y_u, target % y_g.shape[-1])


def expected(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return reference.distill_losses(y_g, y_p, y_u, target % y_g.shape[-1])


def script(y_g: Tensor, y_p: Tensor, y_u: Tensor, target: Tensor) -> list[Tensor]:
    gce, lce, ent, dis = torch.ops.pfl_fast.distill_losses(y_g, y_p, y_u, target)
    return [gce, lce, ent, dis]


def make(dtype: torch.dtype, *shape: int, scale: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    logits = [
        (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype) for _ in ("y_g", "y_p", "y_u")
    ]
    return *logits, torch.randint(max(1, shape[-1]), shape[:-1], generator=generator)


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("a batch", make(dtype, 3, 7)),
        Sample("one sample", make(dtype, 1, 4)),
        Sample("one class", make(dtype, 3, 1)),
        Sample("clients", make(dtype, 2, 3, 5)),
        Sample("more than the lanes", make(dtype, 2, 19)),
        Sample("large logits", make(dtype, 6, 10, scale=30.0)),
        Sample("more rows than lanes, clients", make(dtype, 2, 2, 37, 10)),
        Sample("more rows than a part", make(dtype, 67, 3)),
        Sample("more classes than a tile", make(dtype, 5, 521)),
        Sample("more than a thread's share", make(dtype, 3, 130, 67)),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no samples", make(torch.float32, 0, 4)),
        Sample("no samples of any client", make(torch.float32, 3, 0, 4)),
        Sample("no clients", make(torch.float32, 0, 3, 4)),
    ]


def raw_calls():
    y_g, y_p, y_u, target = make(torch.float64, 2, 3, 5)
    tracked = [y.clone().requires_grad_() for y in (y_g, y_p, y_u)]
    grads = [torch.randn(2, dtype=torch.float64) for _ in range(4)]
    raw = torch.ops.pfl_fast
    return [
        (raw.distill_losses.default, (*tracked, target)),
        (raw.distill_losses_backward.default, (*grads, y_g, y_p, y_u, target)),
    ]


def bad_inputs() -> list[BadInput]:
    y, t, losses = torch.ones(3, 4), torch.tensor([0, 1, 3]), ops.distill_losses
    return [
        BadInput("integers", lambda: losses(y.long(), y, y, t), r"distill_losses: y_g must be float64.*(Long|int64)"),
        BadInput(
            "one dimension", lambda: losses(y[0], y[0], y[0], t[0]), r"distill_losses: y_g must be \[.*got.*\[4\]"
        ),
        BadInput("no classes", lambda: losses(*[y[:, :0]] * 3, t), r"distill_losses: y_g .* at least one class.*3, 0"),
        BadInput("dtype", lambda: losses(y, y.double(), y, t), r"distill_losses: y_p must have the dtype of y_g.*got"),
        BadInput("shape", lambda: losses(y, y, y[:2], t), r"distill_losses: y_u must have the shape of y_g.*\[2, 4\]"),
        BadInput("device", lambda: losses(y, y.to("meta"), y, t), r"distill_losses: y_p must be on the device.*meta"),
        BadInput("target float", lambda: losses(y, y, y, t.float()), r"distill_losses: target must be an int64.*loat"),
        BadInput("target shape", lambda: losses(y, y, y, t[:2]), r"distill_losses: target must have the shape.*\[2\]"),
        BadInput("target device", lambda: losses(y, y, y, t.to("meta")), r"distill_losses: target must be on.*meta"),
        BadInput("target high", lambda: losses(y, y, y, t + 1), r"distill_losses: target must be from 0 to 3, got 4"),
        BadInput("target low", lambda: losses(y, y, y, t - 1), r"distill_losses: target must be from 0 to 3, got -1"),
        BadInput("no tensor", lambda: losses(y, y, y, [0, 1, 3]), r"distill_losses: target must be a tensor, got list"),
        BadInput("no logits", lambda: losses(y, None, y, t), r"distill_losses: y_p must be a tensor, got NoneType"),
    ]


OPERATOR = Operator(
    name="distill_losses",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0, 0), (0, 1, 2, 0), (None, 0, None, None), (0, None, 0, 1), (None, None, None, 0)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["distill_losses", "distill_losses_backward"],
    twice_differentiable=False,
)
