"""Modules made of the fused operators: what models and methods are built from."""

from pfl_fast.nn.conditional_policy import ConditionalPolicy
from pfl_fast.nn.feature_selector import FeatureSelector

__all__ = ["ConditionalPolicy", "FeatureSelector"]
