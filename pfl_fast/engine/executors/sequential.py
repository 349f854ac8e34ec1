"""One client after another on one device: the oracle of the other executors, and the easiest to debug."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pfl_fast.engine.executors.base import Executor, Result, Unit
from pfl_fast.engine.worker import Worker


class SequentialExecutor(Executor):
    """Runs one unit after another in the calling thread."""

    name = "sequential"

    def run(self, units: Sequence[Unit], work: Callable[[Worker, Unit], Result]) -> Iterator[tuple[Unit, Result]]:
        """Calls ``work`` for every unit in order."""
        for unit in units:
            yield unit, self.on_idle_worker(work, unit)
