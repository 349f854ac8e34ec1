"""``about.json`` of a run folder: the machine that started the run, and the samples of each client and class."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_fast import __version__, ops
from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.results.client_rows import client_names


def about_text(data: FederatedData) -> str:
    """Returns the contents of ``about.json`` for a run on this machine."""
    dataset = data.dataset
    about = {
        "environment": environment(),
        "dataset": {"name": dataset.name, "source": dataset.source, "classes": list(dataset.classes)},
        "clients": [
            {**names, **{split: _counts(dataset.y, getattr(data.partition, split)[c]) for split in ("train", "test")}}
            for c, names in enumerate(client_names(data))
        ],
    }
    return json.dumps(about) + "\n"


def environment() -> dict[str, Any]:
    """Returns versions and hardware of this machine."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "pfl-fast": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "GPUs": gpus,
        "operators": f"native, {torch.ops.pfl_fast.cpu_capability()}" if ops.NATIVE.available else "reference",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _counts(labels: NDArray[np.int64], index: Sequence[int] | NDArray[np.int64]) -> dict[str, int]:
    """Returns the number of samples of each class that occurs."""
    classes, counts = np.unique(labels[index], return_counts=True)
    return {str(label): int(count) for label, count in zip(classes, counts, strict=True)}


def is_valid(file: Path) -> bool:
    """Returns whether a file holds a JSON object."""
    try:
        return isinstance(json.loads(file.read_text()), dict)
    except (OSError, ValueError):
        return False
