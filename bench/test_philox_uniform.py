"""``philox_uniform`` for the noise of one FedPick step: a batch of 64 with 8192 features."""

import torch

from pfl_fast import ops
from pfl_fast.ops import reference


def test_philox_uniform(race):
    seed, out = torch.tensor(7), torch.empty(64, 8192)
    compiled = torch.compile(reference.philox_uniform)
    race(
        {
            "native": lambda: ops.philox_uniform(seed, [64, 8192]),
            "reference": lambda: reference.philox_uniform(seed, [64, 8192]),
            "torch.compile of the reference": lambda: compiled(seed, [64, 8192]),
            "torch.rand (sequential generator)": lambda: torch.rand(out.shape, out=out),
        },
        bytes_moved=out.numel() * 4,
    )
