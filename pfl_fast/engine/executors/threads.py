"""Several clients at the same time, one core each: the default on CPUs. On GPUs, one client per GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from pfl_fast.engine.executors.base import PooledExecutor
from pfl_fast.errors import ConfigError


class ThreadsExecutor(PooledExecutor):
    """Runs one client per thread: one thread per core on the CPU, or per GPU."""

    name = "threads"

    def places(self, devices: Sequence[torch.device], workers: int) -> Sequence[torch.device]:
        """Returns the CPU once per thread, or the GPUs."""
        self._on_cpu = devices[0].type == "cpu"
        if not self._on_cpu and workers not in (0, len(devices)):
            raise ConfigError(
                f"workers: executor threads trains one client at a time on each GPU, so {len(devices)}, got {workers}; "
                "executor batched trains many clients at a time on a GPU"
            )
        return [devices[0]] * (workers or os.cpu_count() or 1) if self._on_cpu else devices

    def start_thread(self) -> None:
        """Limits torch to one core: small steps run faster side by side than split over cores."""
        if self._on_cpu:
            torch.set_num_threads(1)
