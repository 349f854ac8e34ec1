"""Uniform numbers that are a pure function of seed and element: the noise of every stochastic operator.

    out[c].flatten()[i] = (k + 1/2) / 2^23,  k = the upper 23 bits of word i % 4 of
                                                 Philox4x32-10(key = seed[c], counter = i // 4)

The same bits on CPU and CUDA, for clients stacked or one at a time, in any order, before or after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference


def philox_uniform(seed: Tensor, shape: Sequence[int]) -> Tensor:
    """Uniform numbers on the open interval (0, 1), drawn by (seed, element) alone.

    Args:
        seed: ``[*batch]`` int64, one seed per client; a scalar tensor for one client.
        shape: of the numbers for one seed.

    Returns:
        ``[*batch, *shape]`` float32, never 0 and never 1; not differentiable.

    >>> a = philox_uniform(torch.tensor(7), [3])
    >>> torch.equal(a, philox_uniform(torch.tensor([7, 8]), [3])[0])
    True
    """
    if not isinstance(seed, Tensor):
        raise TypeError(f"pfl_fast::philox_uniform: seed must be a tensor, got {type(seed).__name__}")
    if backend.uses_native():
        return cast(Tensor, torch.ops.pfl_fast.philox_uniform(seed, shape))
    _check(seed, shape)
    return reference.philox_uniform(seed, shape)


def _check(seed: Tensor, shape: Sequence[int]) -> None:
    if seed.dtype != torch.int64:
        raise RuntimeError(f"pfl_fast::philox_uniform: seed must be an int64 tensor, got {seed.dtype}")
    if any(size < 0 for size in shape):
        raise RuntimeError(f"pfl_fast::philox_uniform: shape must not be negative, got {min(shape)}")


@backend.fake("philox_uniform")
def _(seed: Tensor, shape: Sequence[int]) -> Tensor:
    _check(seed, shape)
    return seed.new_empty([*seed.shape, *shape], dtype=torch.float32)


@backend.vmap("philox_uniform")
def _(info: Any, in_dims: Any, seed: Tensor, shape: Sequence[int]) -> Any:  # noqa: ARG001 called by position
    return torch.ops.pfl_fast.philox_uniform(seed.movedim(in_dims[0], 0), shape), 0
