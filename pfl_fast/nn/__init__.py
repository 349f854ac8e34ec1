"""Modules built from the fused operators."""

from pfl_fast.nn.orthogonal_projector import OrthogonalProjector

__all__ = [
    "OrthogonalProjector",
]
