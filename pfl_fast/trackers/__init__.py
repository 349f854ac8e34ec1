"""Listeners that send a run to an experiment tracker: TensorBoard, Weights & Biases, MLflow.

>>> sorted(TRACKERS)
['mlflow', 'tensorboard', 'wandb']
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from pfl_fast.errors import ConfigError
from pfl_fast.trackers.base import Tracker
from pfl_fast.trackers.mlflow import MLflow
from pfl_fast.trackers.tensorboard import TensorBoard
from pfl_fast.trackers.wandb import WandB

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "check_installed"]


def check_installed(names: Iterable[str]) -> None:
    """Raises if the package of a tracker is missing; tracker and package have the same name."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        remedy = f"pip install 'pfl-fast[{','.join(missing)}]'"
        raise ConfigError(f"log: the package {' and '.join(missing)} is not installed: {remedy}, or pip install it")
