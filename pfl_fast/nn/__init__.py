"""Torch modules built on the fused operators."""

from pfl_fast.nn.accelerate import accelerate
from pfl_fast.nn.batch_norm import BatchCounts, counting, fold_batch_norm
from pfl_fast.nn.conditional_policy import ConditionalPolicy
from pfl_fast.nn.conv_relu_pool import ConvReluPool
from pfl_fast.nn.feature_selector import FeatureSelector
from pfl_fast.nn.linear import Linear, LinearRecorder, replace_linear
from pfl_fast.nn.orthogonal_projector import OrthogonalProjector
from pfl_fast.nn.seeded_dropout import SeededDropout, replace_dropout, seed_dropout, seed_names

__all__ = [
    "BatchCounts",
    "ConditionalPolicy",
    "ConvReluPool",
    "FeatureSelector",
    "Linear",
    "LinearRecorder",
    "OrthogonalProjector",
    "SeededDropout",
    "accelerate",
    "counting",
    "fold_batch_norm",
    "replace_dropout",
    "replace_linear",
    "seed_dropout",
    "seed_names",
]
