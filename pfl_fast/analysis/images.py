"""Images of a run's samples, as they were before normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_fast.analysis.run import FinishedRun


def statistics(run: FinishedRun) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation ``[channels, 1, 1]`` that images were normalised with."""
    dataset = run.experiment.dataset
    mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (dataset.mean, dataset.std))
    return mean, std


def picture(run: FinishedRun, x: Tensor) -> Tensor:
    """Returns a sample ``[c, h, w]`` with values in [0, 1]."""
    mean, std = statistics(run)
    return (x * std + mean).clamp(0, 1)


def as_array(image: Tensor) -> Any:
    """Returns an image ``[c, h, w]`` as an array ``[h, w]`` or ``[h, w, 3]`` in [0, 1]."""
    array = image.detach().clamp(0, 1).movedim(0, -1).numpy()
    return array[..., 0] if array.shape[-1] == 1 else array
