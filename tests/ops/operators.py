"""Description of an operator for the contract test. A new operator adds one module ``<op>_entry.py``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
each_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
both_implementations = pytest.mark.parametrize("implementation", ["native", "reference"])


@dataclass(frozen=True)
class Sample:
    """Inputs of one call: tensors (the floating-point ones are differentiated) and options."""

    name: str
    tensors: tuple[Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadInput:
    """A call that must raise, and a pattern of the message: operator, argument, expectation, value."""

    name: str
    call: Callable[[], object]
    message: str


@dataclass(frozen=True)
class Operator:
    """One public operator, its reference, and the inputs to compare them on."""

    name: str
    call: Callable[..., tuple[Tensor, ...]]
    reference: Callable[..., tuple[Tensor, ...]]
    samples: Callable[[torch.dtype], Sequence[Sample]]
    empty_samples: Callable[[], Sequence[Sample]]
    vmap_dims: Sequence[tuple[int | None, ...]]  # in_dims for the first sample
    script: Callable[..., Any]  # for torch.jit.script, called with the first sample's tensors
    raw_calls: Callable[[], Sequence[tuple[Any, tuple[Any, ...]]]]  # operators and arguments for opcheck
    bad_inputs: Callable[[], Sequence[BadInput]]
    registered: Sequence[str]  # names that must have CPU and CUDA kernels
    dtypes: Sequence[torch.dtype] = FLOATS
    differentiable: bool = True
    twice_differentiable: bool = True


def operators() -> list[Operator]:
    """Returns the operators of all modules ``*_entry.py`` in this folder."""
    names = sorted(file.stem for file in Path(__file__).parent.glob("*_entry.py"))
    return [importlib.import_module(f"tests.ops.{name}").OPERATOR for name in names]
