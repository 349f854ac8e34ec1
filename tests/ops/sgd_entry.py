"""Samples and errors of ``sgd_`` for the contract test, as a function that updates and returns clones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def split(tensors: tuple[Tensor, ...]) -> list[list[Tensor]]:
    """Returns params, grads, buffers and center, with clones of params and buffers, which are written to."""
    count = len(tensors) // 4
    params, grads, buffers, center = (list(tensors[i * count : (i + 1) * count]) for i in range(4))
    return [[p.clone() for p in params], grads, [b.clone() for b in buffers], center]


def call(*tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
    params, grads, buffers, center = split(tensors)
    ops.sgd_(params, grads, buffers, center, **options)
    return (*params, *buffers)


def expected(*tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
    params, grads, buffers, center = split(tensors)
    reference.sgd_(params, grads, buffers, center, **options)
    return (*params, *buffers)


def script(p: Tensor, q: Tensor, gp: Tensor, gq: Tensor, bp: Tensor, bq: Tensor, cp: Tensor, cq: Tensor):
    p, q, bp, bq = p.clone(), q.clone(), bp.clone(), bq.clone()
    params, buffers = [p, q], [bp, bq]
    torch.ops.pfl_fast.sgd_(params, [gp, gq], buffers, [cp, cq], 0.1, 0.9, 0.0, 0.01, True, 0.5, False)
    # TorchScript removes an update of a list that is not read later (torch._foreach_add_ too), and torch's stable ABI
    # empties the list: reading its length keeps the update, and the tensors themselves are returned.
    return [p, q, bp, bq][: len(params) + len(buffers)]


def make(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for _ in range(4) for s in shapes)


EVERYTHING = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "proximal": 0.5}


def samples(dtype: torch.dtype) -> list[Sample]:
    small = make(dtype, (3, 4), (5,))
    large = make(dtype, (4099,), (2, 3, 40009), ())
    return [
        Sample("everything", small, EVERYTHING),
        Sample("plain", small, {"lr": 0.1}),
        Sample("one value", make(dtype, ()), EVERYTHING),
        Sample("momentum", large, {"lr": 0.1, "momentum": 0.9}),
        Sample("momentum and decay", large, {"lr": 0.1, "momentum": 0.5, "weight_decay": 5e-4}),
        Sample("dampening", large, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "proximal": 0.01}),
        Sample("first step", large, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "first_step": True}),
        Sample("first step, Nesterov", large, {**EVERYTHING, "first_step": True}),
        Sample("decay", large, {"lr": 0.1, "weight_decay": 0.1}),
        Sample("proximal", large, {"lr": 0.1, "proximal": 0.1}),
        Sample("proximal and decay", large, {"lr": 0.1, "proximal": 0.1, "weight_decay": 0.1}),
        Sample("large, everything", large, EVERYTHING),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no tensors", (), {"lr": 0.1}),
        Sample("empty tensor", make(torch.float32, (0, 3), (2,), (2, 0)), EVERYTHING),
    ]


def raw_calls():
    params, grads, buffers, center = split(make(torch.float64, (3, 2), (5,)))
    return [
        (torch.ops.pfl_fast.sgd_.default, (params, grads, buffers, center, 0.1, 0.9, 0.0, 0.01, True, 0.5, False)),
        (torch.ops.pfl_fast.sgd_.default, (params, grads, [], [], 0.1, 0.0, 0.0, 0.0, False, 0.0, False)),
        (
            torch.ops.pfl_fast.sgd_tensor_.default,
            (params[0], grads[0], buffers[0], None, 0.1, 0.9, 0.0, 0.01, True, 0.0, False),
        ),
    ]


def bad_inputs() -> list[BadInput]:
    x, sgd_ = torch.ones(3), ops.sgd_

    def bad(name: str, message: str, *lists: Any, **options: Any) -> BadInput:
        return BadInput(name, lambda: sgd_(*(lists or ([x], [x])), **{"lr": 0.1, **options}), f"sgd_: {message}")

    return [
        bad("lr", r"lr must be finite and not negative, got -0.1", lr=-0.1),
        bad("lr NaN", r"lr must be finite.*got -?nan", lr=float("nan")),
        bad("lr tensor", r"lr must be a number, got Tensor", lr=torch.tensor(0.1)),
        bad("momentum", r"momentum must be in \[0, 1\), got 1", [x], [x], [x], momentum=1.0),
        bad("dampening", r"dampening must be finite, got inf", dampening=float("inf")),
        bad("weight_decay", r"weight_decay must be .*not negative, got -1", weight_decay=-1.0),
        bad("proximal", r"proximal must be .*not negative, got -1", proximal=-1.0),
        bad("nesterov", r"nesterov must have momentum > 0 and dampening 0, got momentum 0", nesterov=True),
        bad("dampened", r"nesterov must.*0\.5$", [x], [x], [x], nesterov=True, momentum=0.9, dampening=0.5),
        bad("count", r"grads must hold 1 tensors.*got 2", [x], [x, x]),
        bad("no buffers", r"momentum_buffers must hold 1 tensors.*got 0", momentum=0.9),
        bad("no center", r"center must hold 1 tensors.*got 0", proximal=0.9),
        bad("shape", r"grads\[0\] must have the shape of params\[0\], .*3.*got .*2", [x], [x[:2]]),
        bad("dtype", r"grads\[1\] must have the dtype of params\[1\], .*got .*(ouble|64)", [x, x], [x, x.double()]),
        bad("device", r"grads\[0\] must .* device of params\[0\], cpu, got ", [x], [x.to("meta")]),
        bad("mixed", r"params\[1\] must have the dtype of params\[0\]", [x, x.half()], [x, x.half()]),
        bad("integers", r"params\[0\] must be float64.*got .*(Long|int64)", [x.long()], [x.long()]),
        bad("number", r"grads\[0\] must be a tensor, got float", [x], [1.0]),
        bad("one tensor", r"params must be a list of tensors, got Tensor", x, [x]),
    ]


OPERATOR = Operator(
    name="sgd_",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0,) * 8, (1, 0, 0, None, 0, 0, None, 0), (0, None, 1, None, 2, None, None, None)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["sgd_", "sgd_tensor_"],
    differentiable=False,
)
