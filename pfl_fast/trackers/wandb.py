"""Weights & Biases; WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE choose project, owner and offline runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pfl_fast.trackers.base import Tracker


class WandB(Tracker):
    """Sends a run to Weights & Biases, under the name of its folder."""

    name = "wandb"

    def begin(self, settings: Mapping[str, Any], round: int) -> None:  # noqa: ARG002
        """Opens a new run, or continues that of the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run: Any = import_module("wandb").init(
            dir=str(self.folder), name=self.folder.name, config=dict(settings), id=self.identifier(), resume="allow"
        )
        self.keep_identifier(self.run.id)

    def send(self, values: Mapping[str, float], round: int) -> None:
        """Sends the values as one step."""
        self.run.log(dict(values), step=round)

    def end(self, summary: Mapping[str, float]) -> None:
        """Sends the summary and waits until all has been sent."""
        self.run.summary.update(dict(summary))
        self.run.finish()
