"""Models split into extractor and head: the papers' models by name, and user models by the name of their head."""

from pfl_fast.models.base import Backbone
from pfl_fast.models.groups import GRANULARITIES, has_stages, tensor_groups
from pfl_fast.models.normalisation import batch_norm_tensors
from pfl_fast.models.own import absolute_code, find_object
from pfl_fast.models.registry import MODELS, ModelEntry, build, default_model
from pfl_fast.models.split import split

__all__ = [
    "GRANULARITIES",
    "MODELS",
    "Backbone",
    "ModelEntry",
    "absolute_code",
    "batch_norm_tensors",
    "build",
    "default_model",
    "find_object",
    "has_stages",
    "split",
    "tensor_groups",
]
