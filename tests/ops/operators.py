"""What the contract needs to know of an operator. A new operator adds one entry module and one line below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Sample:
    """Inputs of one call: tensors, of which floating ones are differentiated, and options."""

    name: str
    tensors: tuple[Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadInput:
    """A call that must fail with a message that matches: operator, argument, expectation, what came."""

    name: str
    call: Callable[[], object]
    message: str


@dataclass(frozen=True)
class Operator:
    """One public operator as a function of tensors, its meaning in plain torch, and what to try on both."""

    name: str
    call: Callable[..., tuple[Tensor, ...]]
    reference: Callable[..., tuple[Tensor, ...]]
    samples: Callable[[torch.dtype], Sequence[Sample]]
    empty_samples: Callable[[], Sequence[Sample]]
    vmap_dims: Sequence[tuple[int | None, ...]]  # in_dims to try on the first sample
    script: Callable[..., Any]  # annotated for torch.jit.script; takes the first sample's tensors
    raw_calls: Callable[[], Sequence[tuple[Any, tuple[Any, ...]]]]  # registered operators and arguments for opcheck
    bad_inputs: Callable[[], Sequence[BadInput]]
    registered: Sequence[str]  # every name that must have a CPU and a CUDA kernel
    dtypes: Sequence[torch.dtype] = FLOATS
    differentiable: bool = True
    twice_differentiable: bool = True


def operators() -> list[Operator]:
    from tests.ops import aggregate_entry, mmd_rbf_entry, orthogonal_project_entry, philox_uniform_entry

    return [
        aggregate_entry.OPERATOR,
        mmd_rbf_entry.OPERATOR,
        orthogonal_project_entry.OPERATOR,
        philox_uniform_entry.OPERATOR,
    ]
