"""TensorBoard: event files in the folder ``tensorboard`` of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfl_fast.trackers.base import Tracker

FLUSH_SECONDS = 5


class TensorBoard(Tracker):
    """Writes event files to ``<folder>/tensorboard``; ``tensorboard --logdir runs`` shows them."""

    name = "tensorboard"

    def begin(self, settings: Mapping[str, Any], round: int) -> None:
        """Opens an event file; values of rounds that are trained again are replaced."""
        from torch.utils.tensorboard import SummaryWriter

        folder = str(self.folder / "tensorboard")
        purge = round if round > 1 else None
        self.writer: Any = SummaryWriter(folder, purge_step=purge, flush_secs=FLUSH_SECONDS)
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self.writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}")

    def send(self, values: Mapping[str, float], round: int) -> None:
        """Writes one point of every curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, round)

    def end(self, summary: Mapping[str, float]) -> None:  # noqa: ARG002
        """Closes the event file."""
        self.writer.close()
