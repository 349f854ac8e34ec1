"""Modules made of the fused operators: what models and methods are built from."""

from pfl_fast.nn.conditional_policy import ConditionalPolicy
from pfl_fast.nn.feature_selector import FeatureSelector
from pfl_fast.nn.orthogonal_projector import OrthogonalProjector

__all__ = ["ConditionalPolicy", "FeatureSelector", "OrthogonalProjector"]
