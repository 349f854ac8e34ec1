"""Samples and errors of ``cpn_route`` for the contract test."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(
    h: Tensor, a: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor | None = None, eps: float = 1e-5, tau: float = 1.0
) -> tuple[Tensor, ...]:
    return ops.cpn_route(h, a, gamma, beta, eps, seed, tau)


def expected(
    h: Tensor, a: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor | None = None, eps: float = 1e-5, tau: float = 1.0
) -> tuple[Tensor, ...]:
    return reference.cpn_route(h, a, gamma, beta, eps, seed, tau)


def script(h: Tensor, a: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor) -> list[Tensor]:
    global_part, personal_part, _ = torch.ops.pfl_fast.cpn_route(h, a, gamma, beta, 1e-5, seed, 1.0)
    return [global_part, personal_part]


def make(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)

    *batch, rows, features = shape
    gamma, beta = random(*batch, 2 * features), random(*batch, 2 * features)
    return random(*shape), 2 * random(*batch, rows, 2 * features) + 1, gamma, beta


def samples(dtype: torch.dtype) -> list[Sample]:
    return [
        Sample("noise", (*make(dtype, 3, 5), torch.tensor(7))),
        Sample("no noise", make(dtype, 3, 5)),
        Sample("one feature", (*make(dtype, 4, 1), torch.tensor(-1)), {"tau": 0.5, "eps": 0.1}),
        Sample("clients", (*make(dtype, 2, 3, 2), torch.tensor([1, 2**62])), {"tau": 2.0}),
        Sample("batches of clients", make(dtype, 2, 2, 1, 3), {"tau": 0.7}),
        Sample("a prime above a tile", (*make(dtype, 3, 7, 521), torch.tensor([4, 4, 5]))),
        Sample("several parts and threads", make(dtype, 70, 1031)),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no rows", make(torch.float32, 0, 3)),
        Sample("no clients", make(torch.float32, 0, 2, 3)),
    ]


def raw_calls():
    h, a, gamma, beta = make(torch.float64, 2, 3, 5)
    tracked = [t.clone().requires_grad_() for t in (h, a, gamma, beta)]
    seed = torch.tensor([1, 2])
    raw = torch.ops.pfl_fast
    stats = raw.cpn_route(h, a, gamma, beta, 1e-5, None, 1.0)[2]
    return [
        (raw.cpn_route.default, (*tracked, 1e-5, seed, 0.5)),
        (raw.cpn_route.default, (tracked[0], a, gamma, beta, 1e-5, None, 1.0)),
        (raw.cpn_route_backward.default, (h, -h, h, a, gamma, beta, stats, seed, 0.5)),
        (raw.cpn_route_backward.default, (h, -h, h, a, gamma, beta, stats, None, 1.0)),
    ]


def bad_inputs() -> list[BadInput]:
    h, a, g, b, seed = torch.ones(3, 2), torch.ones(3, 4), torch.ones(4), torch.zeros(4), torch.tensor(1)
    route = ops.cpn_route
    name = "pfl_fast::cpn_route: "
    return [
        BadInput("one row", lambda: route(h[0], a, g, b), name + r"h must be \[\*batch, b, K\], got shape \[2\]"),
        BadInput("width", lambda: route(h, h, g, b), name + r"a must have shape \[3, 4\] \w+ h \[3, 2\], got \[3, 2\]"),
        BadInput("gamma", lambda: route(h, a, g[:2], b), name + r"gamma must have shape \[4\].*got \[2\]"),
        BadInput("beta", lambda: route(h, a, g, b[None]), name + r"beta must have shape \[4\].*got \[1, 4\]"),
        BadInput("integers", lambda: route(h.long(), a, g, b), name + r"h must be float64.*got .*(Long|int64)"),
        BadInput("mixed a", lambda: route(h, a.double(), g, b), name + r"a must have the dtype of h.*(Double|float64)"),
        BadInput(
            "mixed gamma",
            lambda: route(h.half(), a.half(), g, b.half()),
            name + r"gamma must have the dtype of h.*loat",
        ),
        BadInput(
            "mixed beta", lambda: route(h, a, g, b.half()), name + r"beta must have the dtype of h.*(Half|float16)"
        ),
        BadInput("device", lambda: route(h, a, g, b.to("meta")), name + r"beta must be on the device of h, cpu"),
        BadInput("seed type", lambda: route(h, a, g, b, seed=seed.float()), name + r"seed must be an int64.*loat"),
        BadInput("seeds", lambda: route(h, a, g, b, seed=seed[None]), name + r"seed must have shape \[\].*got \[1\]"),
        BadInput("tau", lambda: route(h, a, g, b, tau=0.0), name + r"tau must be positive and finite, got 0"),
        BadInput("eps", lambda: route(h, a, g, b, eps=0.0), name + r"eps must be positive and finite, got 0"),
        BadInput("eps nan", lambda: route(h, a, g, b, eps=float("nan")), name + r"eps must be positive .* got nan"),
        BadInput("list", lambda: route(h, a, [1.0], b), name + r"gamma must be a tensor, got list"),
        BadInput("none", lambda: route(h, a, g, None), name + r"beta must be a tensor, got NoneType"),
        BadInput("plain seed", lambda: route(h, a, g, b, seed=1), name + r"seed must be a tensor, got int"),
    ]


OPERATOR = Operator(
    name="cpn_route",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[
        (0, 0, 0, 0, 0),
        (0, 0, None, None, None),
        (None, 1, 0, None, 0),
        (1, 2, 1, 0, None),
        (None, None, 0, 0, None),
        (None, None, None, None, 0),
    ],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["cpn_route", "cpn_route_backward"],
    twice_differentiable=False,
)
