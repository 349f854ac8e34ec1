"""Samples and errors of ``gumbel_mask`` for the contract test.

Soft samples come first: gradcheck uses the first five, and a straight-through gradient differs from the numerical one
by design. test_gumbel_mask.py checks the hard gradient against its formula.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(z: Tensor, logits: Tensor, seed: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return ops.gumbel_mask(z, logits, seed, **options)


def expected(z: Tensor, logits: Tensor, seed: Tensor, noise: bool = True, **options: Any) -> tuple[Tensor, ...]:
    return reference.gumbel_mask(z, logits, seed if noise else None, **options)


def script(z: Tensor, logits: Tensor, seed: Tensor) -> list[Tensor]:
    selected, rest, _ = torch.ops.pfl_fast.gumbel_mask(z, logits, seed, 0.7, 0.5, False)
    return [selected, rest]


def make(dtype: torch.dtype, shape: tuple[int, ...], seed: Any = 7) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    z, logits = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    return z, logits, torch.tensor(seed, dtype=torch.int64)


def samples(dtype: torch.dtype) -> list[Sample]:
    soft = {"hard": False}
    z, _, seed = make(dtype, (3, 5))
    return [
        Sample("soft", make(dtype, (3, 5)), {**soft, "tau": 0.7}),
        Sample("soft, one value", make(dtype, ()), soft),
        Sample("soft, clients", make(dtype, (3, 2, 5), [1, 2, -3]), {**soft, "tau": 2.0}),
        Sample("soft, no noise", make(dtype, (4, 3)), {**soft, "noise": False}),
        Sample("soft, a seed for each value", make(dtype, (2, 3), [[1, 2, 3], [4, 5, 6]]), soft),
        Sample("hard", make(dtype, (3, 5))),
        Sample("hard, clients, primes and more than one tile", make(dtype, (3, 7, 149), [5, 2**62, 6]), {"tau": 10.0}),
        Sample("hard, more than a thread's share", make(dtype, (64, 512)), {"threshold": 0.8, "tau": 0.5}),
        Sample("hard, no noise", make(dtype, (11, 67)), {"noise": False, "threshold": 0.3}),
        Sample("hard, logits at the threshold", (z, torch.zeros_like(z), seed), {"noise": False}),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no features", make(torch.float32, (3, 0), [1, 2, 3])),
        Sample("no clients", make(torch.float32, (0, 3), [])),
        Sample("no clients, no noise", make(torch.float32, (0, 3)), {"noise": False, "hard": False}),
    ]


def raw_calls():
    z, logits, seed = make(torch.float64, (2, 5), [1, 2])
    tracked = z.clone().requires_grad_(), logits.clone().requires_grad_()
    raw = torch.ops.pfl_fast
    return [
        (raw.gumbel_mask.default, (*tracked, seed, 0.5, 0.4, False)),
        (raw.gumbel_mask.default, (*tracked, seed, 0.5, 0.4, True)),
        (raw.gumbel_mask.default, (*tracked, None, 0.5, 0.4, True)),
        (raw.gumbel_mask_backward.default, (*tracked, z, logits, 0.5, 0.4, False)),
        (raw.gumbel_mask_backward.default, (z, logits, *tracked, 0.5, 0.4, True)),
    ]


def bad_inputs() -> list[BadInput]:
    z, seed, mask = torch.ones(3, 2), torch.tensor(1), ops.gumbel_mask
    return [
        BadInput("z", lambda: mask(z.long(), z.long(), seed), r"gumbel_mask: z must be float64.*got .*(Long|int64)"),
        BadInput("mixed", lambda: mask(z, z.double(), seed), r"gumbel_mask: logits must have the dtype of z.*got .*"),
        BadInput("shape", lambda: mask(z, z[:2], seed), r"gumbel_mask: logits must have the shape of z, \[3, 2\].*got"),
        BadInput(
            "device", lambda: mask(z, z.to("meta"), seed), r"gumbel_mask: logits must be on the device of z.*meta"
        ),
        BadInput("seed", lambda: mask(z, z, seed.float()), r"gumbel_mask: seed must be an int64 tensor, got .*loat"),
        BadInput(
            "seed device", lambda: mask(z, z, seed.to("meta")), r"gumbel_mask: seed must be on the device of z.*meta"
        ),
        BadInput(
            "seed shape",
            lambda: mask(z, z, torch.ones(2).long()),
            r"gumbel_mask: seed must have the leading.*got.*\[2\]",
        ),
        BadInput(
            "too many seeds", lambda: mask(z, z, torch.ones(3, 2, 1).long()), r"gumbel_mask: seed must have the leading"
        ),
        BadInput("tau 0", lambda: mask(z, z, seed, tau=0.0), r"gumbel_mask: tau must be positive.*got 0"),
        BadInput("tau NaN", lambda: mask(z, z, seed, tau=float("nan")), r"gumbel_mask: tau must be positive.*got nan"),
        BadInput(
            "threshold", lambda: mask(z, z, seed, threshold=1.0), r"gumbel_mask: threshold must be between.*got 1"
        ),
        BadInput("no seed", lambda: mask(z, z, None), r"gumbel_mask: seed must be a tensor, got NoneType"),
        BadInput("not z", lambda: mask([1.0], z, seed), r"gumbel_mask: z must be a tensor, got list"),
        BadInput("not logits", lambda: mask(z, 1.0, seed), r"gumbel_mask: logits must be a tensor, got float"),
    ]


OPERATOR = Operator(
    name="gumbel_mask",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0, 0, 0), (0, 0, None), (None, None, 0), (1, 0, None), (0, None, 0), (None, 2, 0), (None, 1, None)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["gumbel_mask", "gumbel_mask_backward"],
)
