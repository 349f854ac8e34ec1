"""Data sets, their partition over clients, and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_fast.data.loader import Loader

__all__ = ["Loader"]


def __getattr__(name: str) -> Any:
    """Imports torch only when a loader is asked for."""
    if name == "Loader":
        from pfl_fast.data.loader import Loader

        return Loader
    raise AttributeError(f"module 'pfl_fast.data' has no attribute {name!r}")
