"""Helpers for tests and benchmarks of operators and methods, also those outside this package."""

from __future__ import annotations

import torch
from torch import Tensor

# A native sum and torch's differ in the order of additions (a few roundings of the type sums are kept in) and half
# types round once more at the end.
TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def assert_close(actual: Tensor, expected: Tensor, what: str = "", scale: float = 1.0) -> None:
    """Asserts equality up to the rounding of the dtype; ``scale`` is the size of intermediate sums."""
    tolerance = TOLERANCES.get(actual.dtype, 0.0)
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Returns True if two tensors are equal bit for bit, NaNs included.

    >>> same_bits(torch.zeros(4)[::4], -torch.zeros(1))
    False
    """
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
