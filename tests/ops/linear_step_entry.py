"""Samples and errors of ``linear_step_`` for the contract test, as a function that updates and returns clones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.linear_entry import mostly_zero
from tests.ops.operators import BadInput, Operator, Sample


def call(weight: Tensor, grad: Tensor, x: Tensor, start: Tensor | None = None, **options: Any) -> tuple[Tensor, ...]:
    weight = weight.clone()
    ops.linear_step_(weight, grad, x, start=start, **options)
    return (weight,)


def expected(
    weight: Tensor, grad: Tensor, x: Tensor, start: Tensor | None = None, **options: Any
) -> tuple[Tensor, ...]:
    weight = weight.clone()
    reference.linear_step_(weight, grad, x, start=start, **options)
    return (weight,)


def script(weight: Tensor, grad: Tensor, x: Tensor):
    weight = weight.clone()
    torch.ops.pfl_fast.linear_step_(weight, grad, x, None, 0.1, 0.0)
    return [weight]


def make(dtype: torch.dtype, *batch: int, inputs: int = 19, outputs: int = 5, start: bool = False):
    """Returns random tensors; ``batch`` ends with the number of rows."""
    generator = torch.Generator().manual_seed(5)
    weight = (*batch[:-1], outputs, inputs)
    shapes = [weight, (*batch, outputs), (*batch, inputs), *[weight] * start]
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)


def with_zero_grads(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns tensors in which every second output has no gradient, and one output only in its last row."""
    weight, grad, *rest = tensors
    grad = grad.clone()
    grad[..., ::2] = 0
    grad[..., :-1, 1] = 0
    return weight, grad, *rest


def x_mostly_zero(weight: Tensor, grad: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return weight, grad, *mostly_zero(x)


PLAIN, DECAY = {"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.3}


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("few of all", make(dtype, 3), PLAIN),
        Sample("decay", make(dtype, 3), DECAY),
        Sample("from elsewhere", make(dtype, 3, start=True), PLAIN),
        Sample("from elsewhere, decay", make(dtype, 2, 3, outputs=50, start=True), DECAY),
        Sample("clients", make(dtype, 2, 2, 3, inputs=7, outputs=2), PLAIN),
        Sample("one of all", make(dtype, 1, inputs=1, outputs=1), PLAIN),
        *[Sample(f"{n} outputs", make(dtype, 4, inputs=70, outputs=n), PLAIN) for n in (5, 6, 7, 47, 48, 49, 97)],
        *[Sample(f"{k} inputs", make(dtype, 7, inputs=k, outputs=6), DECAY) for k in (15, 16, 63, 64, 65, 130)],
        *[
            Sample(
                f"no gradient {name}",
                with_zero_grads(make(dtype, 9, inputs=66, outputs=55, start=start)),
                options,
            )
            for name, start, options in (("plain", 0, PLAIN), ("from elsewhere", 1, PLAIN), ("decay", 1, DECAY))
        ],
        Sample("x mostly zero", x_mostly_zero(*make(dtype, 2, 24, inputs=330, outputs=105)), DECAY),
        Sample("enough for threads", make(dtype, 3, 10, inputs=300, outputs=130), PLAIN),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no rows", make(torch.float32, 0), DECAY),
        Sample("no clients", make(torch.float32, 0, 3), PLAIN),
        Sample("no inputs", make(torch.float32, 3, inputs=0), PLAIN),
        Sample("no outputs", make(torch.float32, 2, 3, outputs=0, start=True), PLAIN),
    ]


def raw_calls():
    weight, grad, x, start = make(torch.float64, 2, 3, start=True)
    return [
        (torch.ops.pfl_fast.linear_step_.default, (weight, grad, x, start, 0.1, 0.01)),
        (torch.ops.pfl_fast.linear_step_.default, (weight, grad, x, None, 0.1, 0.0)),
    ]


def bad_inputs() -> list[BadInput]:
    w, g, x = make(torch.float32, 3, inputs=4, outputs=2)

    def bad(name: str, message: str, *tensors: Any, **options: Any) -> BadInput:
        given = tensors or (w, g, x)
        return BadInput(name, lambda: ops.linear_step_(*given, **{"lr": 0.1, **options}), f"linear_step_: {message}")

    return [
        bad("list", r"weight must be a tensor, got list", [1.0], g, x),
        bad("start is a number", r"start must be a tensor, got float", start=1.0),
        bad("lr", r"lr must be finite and not negative, got -0.1", lr=-0.1),
        bad("lr NaN", r"lr must be finite.*got -?nan", lr=float("nan")),
        bad("lr tensor", r"lr must be a number, got Tensor", lr=torch.tensor(0.1)),
        bad("weight_decay", r"weight_decay must be .*not negative, got -1", weight_decay=-1.0),
        bad("integers", r"x must be float64.*got .*(Long|int64)", w, g, x.long()),
        bad("one row", r"x must be \[\*batch, b, k\], got shape \[4\]", w, g, x[0]),
        bad("dtype", r"weight must have the dtype of x.*got .*(Double|float64)", w.double(), g, x),
        bad("dtype of grad", r"grad must have the dtype of x.*got .*(Half|float16)", w, g.half(), x),
        bad("device", r"grad must be on the device of x.*meta", w, g.to("meta"), x),
        bad("inputs", r"weight must be .*the k of x.*got \[2, 3\]", w[:, :3], g, x),
        bad("clients", r"weight must be .*batch.*got \[1, 2, 4\]", w[None], g, x),
        bad("grad", r"grad must have the shape of the result.*got \[3, 1\]", w, g[:, :1], x),
        bad("shape of start", r"start must have the shape of weight.*got \[1, 4\]", start=w[:1]),
        bad("dtype of start", r"start must have the dtype of x.*got .*(Double|float64)", start=w.double()),
    ]


OPERATOR = Operator(
    name="linear_step_",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0), (1, 0, None), (0, None, 2)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["linear_step_"],
    differentiable=False,
)
