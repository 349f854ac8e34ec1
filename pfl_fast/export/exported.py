"""Predictions of exported models, and of models of a run in the same form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_fast.export.formats import Logits, read

BATCH = 100


@dataclass(frozen=True)
class ExportedModel:
    """A model from samples as users have them to logits.

    Attributes:
        logits: ``[b, *shape]`` samples to ``[b, C]`` logits.
        about: description of the model: ``input``, ``classes``, ``client``, ``method`` and others.
    """

    logits: Logits
    about: dict[str, Any]

    def probabilities(self, samples: Tensor) -> Tensor:
        """Returns the softmax of the logits ``[n, C]``, computed in batches."""
        with torch.no_grad():
            parts = [self.logits(batch).softmax(1) for batch in samples.split(BATCH)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.about["classes"]))


def load_exported(file: str | Path) -> ExportedModel:
    """Loads a file that :func:`pfl_fast.export.export_client` wrote; only from people you trust, as any program."""
    return ExportedModel(*read(Path(file)))
