"""Samples and errors of ``philox_uniform`` for the contract test."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_fast import ops
from pfl_fast.ops import reference
from tests.ops.operators import BadInput, Operator, Sample


def call(seed: Tensor, shape: list[int]) -> tuple[Tensor, ...]:
    return (ops.philox_uniform(seed, shape),)


def expected(seed: Tensor, shape: list[int]) -> tuple[Tensor, ...]:
    return (reference.philox_uniform(seed, shape),)


def script(seed: Tensor) -> list[Tensor]:
    return [torch.ops.pfl_fast.philox_uniform(seed, [5])]


def samples(_: torch.dtype) -> list[Sample]:
    return [
        Sample("one seed", (torch.tensor(7),), {"shape": [5]}),
        Sample("one number", (torch.tensor(0),), {"shape": [1]}),
        Sample("scalar shape", (torch.tensor([1, 2]),), {"shape": []}),
        Sample("clients", (torch.tensor([3, -1, 2**62, 3]),), {"shape": [3, 67]}),
        Sample("more than a thread's share", (torch.tensor([5, 6]),), {"shape": [40009]}),
        Sample("batches of clients", (torch.arange(6).view(2, 3),), {"shape": [2, 2]}),
    ]


def empty_samples() -> list[Sample]:
    return [
        Sample("no numbers", (torch.tensor(1),), {"shape": [0]}),
        Sample("no seeds", (torch.zeros(0, dtype=torch.int64),), {"shape": [3]}),
    ]


def raw_calls():
    return [(torch.ops.pfl_fast.philox_uniform.default, (torch.tensor([1, 2]), [3, 5]))]


def bad_inputs() -> list[BadInput]:
    uniform, seed = ops.philox_uniform, torch.tensor(1)
    return [
        BadInput("seed", lambda: uniform(seed.float(), [2]), r"philox_uniform: seed must be an int64.*got .*loat"),
        BadInput("number", lambda: uniform(1, [2]), r"philox_uniform: seed must be a tensor, got int"),
        BadInput("shape", lambda: uniform(seed, [-2]), r"philox_uniform: shape must not be negative, got -2"),
    ]


OPERATOR = Operator(
    name="philox_uniform",
    call=call,
    reference=expected,
    samples=samples,
    empty_samples=empty_samples,
    vmap_dims=[(0,)],
    script=script,
    raw_calls=raw_calls,
    bad_inputs=bad_inputs,
    registered=["philox_uniform"],
    dtypes=(torch.int64,),
    differentiable=False,
)
