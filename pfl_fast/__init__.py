"""pfl-fast: every client of a personalized federated learning experiment in one process, fast.

``from pfl_fast import ops`` is all that another trainer needs to use the fused operators;
``from pfl_fast import Experiment`` trains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_fast.experiment import Experiment

__version__ = "0.1.0"
__all__ = ["Experiment", "__version__"]


def __getattr__(name: str) -> Any:
    """Imports torch only when an experiment is asked for."""
    if name == "Experiment":
        from pfl_fast.experiment import Experiment

        return Experiment
    raise AttributeError(f"module 'pfl_fast' has no attribute {name!r}")
