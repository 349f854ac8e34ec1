"""Counter-based uniform random numbers, a pure function of seed and element: the noise of all stochastic operators.

    out[c].flatten()[i] = (k + 1/2) / 2^23,  k = the upper 23 bits of word i % 4 of
                                                 Philox4x32-10(key = seed[c], counter = i // 4)

CPU and CUDA give the same bits, for stacked clients and single ones, in any order, before and after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from pfl_fast.ops import backend, reference
from pfl_fast.ops.support import check_int64, check_tensors, expect


def philox_uniform(seed: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns uniform numbers on the open interval (0, 1) that depend on the seed and the element's index only.

    Args:
        seed: ``[*batch]`` int64, one seed per client; a scalar tensor for one client.
        shape: shape of the numbers drawn per seed.

    Returns:
        ``[*batch, *shape]`` float32, never 0 and never 1; not differentiable.

    >>> a = philox_uniform(torch.tensor(7), [3])
    >>> torch.equal(a, philox_uniform(torch.tensor([7, 8]), [3])[0])
    True
    """
    check_tensors("philox_uniform", seed=seed)
    if backend.runs_native("philox_uniform", seed):
        return cast(Tensor, torch.ops.pfl_fast.philox_uniform(seed, shape))
    _check(seed, shape)
    return reference.philox_uniform(seed, shape)


def _check(seed: Tensor, shape: Sequence[int]) -> None:
    check_int64("philox_uniform", "seed", seed)
    smallest = min(shape, default=0)
    expect("philox_uniform", smallest >= 0, f"shape must not be negative, got {smallest}")


@backend.fake("philox_uniform")
def _(seed: Tensor, shape: Sequence[int]) -> Tensor:
    _check(seed, shape)
    return seed.new_empty([*seed.shape, *shape], dtype=torch.float32)


backend.vmap_to_leading_dimension("philox_uniform")
