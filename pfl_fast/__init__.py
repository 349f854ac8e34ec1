"""pfl-fast: every client of a personalized federated learning experiment in one process, fast.

``from pfl_fast import ops`` is all that another trainer needs to use the fused operators;
``from pfl_fast import Experiment`` trains, on a ``Dataset`` and a ``Partition`` of your own if you like.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_fast.data.dataset import Dataset
    from pfl_fast.data.partition import Partition
    from pfl_fast.experiment import Experiment

__version__ = "0.1.0"
__all__ = ["Dataset", "Experiment", "Partition", "__version__"]
_MODULES = {"Dataset": "data.dataset", "Experiment": "experiment", "Partition": "data.partition"}


def __getattr__(name: str) -> Any:
    """Imports NumPy and torch only when a name is asked for that needs them."""
    if name in _MODULES:
        return getattr(import_module(f"pfl_fast.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'pfl_fast' has no attribute {name!r}")
