"""pfl-fast: every client of a personalized federated learning experiment in one process, fast.

``from pfl_fast import Experiment`` trains; ``from pfl_fast import ops`` is all that another trainer needs to use the
fused operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfl_fast.experiment import Experiment

__version__ = "0.1.0"
__all__ = ["Experiment"]


def __getattr__(name: str) -> Any:
    """Imports the trainer, and torch with it, only when it is asked for: the command line and setup.py stay instant."""
    if name == "Experiment":
        from pfl_fast.experiment import Experiment

        return Experiment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
