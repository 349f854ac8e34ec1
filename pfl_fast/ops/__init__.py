"""Fused operators for personalized federated learning, usable in any training loop.

>>> import torch
>>> from pfl_fast import ops
>>> ops.aggregate(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([0.5, 0.5]))
tensor([2., 4.])

Every operator has native CPU and CUDA kernels and a plain-torch reference implementation in
:mod:`pfl_fast.ops.reference`, which ``with ops.use("reference"):`` selects.
"""

from pfl_fast.ops import reference
from pfl_fast.ops.aggregate import aggregate, aggregate_checked
from pfl_fast.ops.aggregate_state_dicts import aggregate_state_dicts
from pfl_fast.ops.backend import NATIVE, use, uses_native
from pfl_fast.ops.conv_relu_pool import conv_relu_pool
from pfl_fast.ops.cpn_route import cpn_route
from pfl_fast.ops.distill_losses import distill_losses
from pfl_fast.ops.gumbel_mask import gumbel_mask
from pfl_fast.ops.mix import mix
from pfl_fast.ops.mmd_rbf import mmd_rbf
from pfl_fast.ops.orthogonal_project import orthogonal_project
from pfl_fast.ops.philox_uniform import philox_uniform
from pfl_fast.ops.route import route
from pfl_fast.ops.sgd import sgd_
from pfl_fast.ops.take_normalized import take_normalized

__all__ = [
    "NATIVE",
    "aggregate",
    "aggregate_checked",
    "aggregate_state_dicts",
    "conv_relu_pool",
    "cpn_route",
    "distill_losses",
    "gumbel_mask",
    "mix",
    "mmd_rbf",
    "orthogonal_project",
    "philox_uniform",
    "reference",
    "route",
    "sgd_",
    "take_normalized",
    "use",
    "uses_native",
]
