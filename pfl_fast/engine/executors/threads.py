"""Several clients at the same time, one core each: the default on CPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from pfl_fast.engine.executors.base import Executor


class ThreadsExecutor(Executor):
    """Runs one client per thread: one thread per core on the CPU, or per GPU."""

    name = "threads"

    def places(self, devices: Sequence[torch.device], workers: int) -> Sequence[torch.device]:
        """Returns the CPU once per thread, or the GPUs."""
        self._on_cpu = devices[0].type == "cpu"
        return [devices[0]] * (workers or os.cpu_count() or 1) if self._on_cpu else devices

    def start_thread(self) -> None:
        """Limits torch to one core: small steps run faster side by side than split over cores."""
        if self._on_cpu:
            torch.set_num_threads(1)
