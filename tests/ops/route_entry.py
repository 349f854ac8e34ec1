"""The contract entry of ``route``."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(h: Tensor, a: Tensor, seed: Tensor | None = None, tau: float = 1.0) -> tuple[Tensor, ...]:
    return ops.route(h, a, seed, tau)


def meaning(h: Tensor, a: Tensor, seed: Tensor | None = None, tau: float = 1.0) -> tuple[Tensor, ...]:
    return reference.route(h, a, seed, tau)


def script(h: Tensor, a: Tensor, seed: Tensor) -> list[Tensor]:
    global_part, personal_part = torch.ops.pfl_fast.route(h, a, seed, 1.0)
    return [global_part, personal_part]


def make(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(shape, generator=generator, dtype=torch.float64)
    a = torch.randn(*shape[:-1], 2 * shape[-1], generator=generator, dtype=torch.float64)
    return h.to(dtype), (2 * a).to(dtype)


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("noise", (*make(dtype, 3, 5), torch.tensor(7))),
        Sample("no noise", make(dtype, 3, 5)),
        Sample("one feature", (*make(dtype, 4, 1), torch.tensor(-1)), {"tau": 0.5}),
        Sample("clients", (*make(dtype, 2, 3, 2), torch.tensor([1, 2**62])), {"tau": 2.0}),
        Sample("batches of clients", make(dtype, 2, 2, 1, 3), {"tau": 0.7}),
        Sample("a prime above a tile", (*make(dtype, 3, 7, 521), torch.tensor([4, 4, 5]))),
        Sample("more than a thread's share", make(dtype, 70, 1031)),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no rows", make(torch.float32, 0, 3)),
        Sample("no features", make(torch.float32, 3, 0)),
        Sample("no clients", make(torch.float32, 0, 2, 3)),
    ]


def raw_calls():
    h, a = make(torch.float64, 2, 3, 5)
    seed = torch.tensor([1, 2])
    raw = torch.ops.pfl_fast
    return [
        (raw.route.default, (h.clone().requires_grad_(), a.clone().requires_grad_(), seed, 0.5)),
        (raw.route.default, (h.clone().requires_grad_(), a, None, 1.0)),
        (raw.route_backward.default, (h, -h, h, a, seed, 0.5)),
        (raw.route_backward.default, (h, -h, h, a, None, 1.0)),
    ]


def bad_inputs() -> list[BadInput]:
    route, h, a, seed = ops.route, torch.ones(3, 2), torch.ones(3, 4), torch.tensor(1)
    return [
        BadInput("one row", lambda: route(h[0], a), r"route: h must be \[\*batch, b, K\], got shape \[2\]"),
        BadInput("width", lambda: route(h, h), r"route: a must have shape \[3, 4\] \w+ h \[3, 2\], got \[3, 2\]"),
        BadInput("rows", lambda: route(h, a[:2]), r"route: a must have shape \[3, 4\].*got \[2, 4\]"),
        BadInput("integers", lambda: route(h.long(), a.long()), r"route: h must be float64.*got .*(Long|int64)"),
        BadInput("mixed", lambda: route(h, a.double()), r"route: a must have the dtype of h.*got .*(Double|float64)"),
        BadInput("device", lambda: route(h, a.to("meta")), r"route: a must be on the device of h, cpu, got (meta|dev)"),
        BadInput("seed type", lambda: route(h, a, seed.float()), r"route: seed must be an int64 tensor, got .*loat"),
        BadInput("seeds", lambda: route(h, a, torch.tensor([1])), r"route: seed must have shape \[\] .*got \[1\]"),
        BadInput("seed device", lambda: route(h, a, seed.to("meta")), r"route: seed must be on the device of h, cpu"),
        BadInput("tau 0", lambda: route(h, a, tau=0.0), r"route: tau must be positive and finite, got 0"),
        BadInput("tau < 0", lambda: route(h, a, tau=-1.0), r"route: tau must be positive and finite, got -1"),
        BadInput("tau nan", lambda: route(h, a, tau=float("nan")), r"route: tau must be positive and finite, got nan"),
        BadInput("list", lambda: route([1.0], a), r"route: h must be a tensor, got list"),
        BadInput("number", lambda: route(h, 1.0), r"route: a must be a tensor, got float"),
        BadInput("plain seed", lambda: route(h, a, 1), r"route: seed must be a tensor, got int"),
    ]


OPERATOR = Operator(
    name="route",
    call=call,
    reference=meaning,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0), (None, 0, 0), (1, 2, None), (2, None, None), (None, None, 0)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["route", "route_backward"],
    twice_differentiable=False,
)
