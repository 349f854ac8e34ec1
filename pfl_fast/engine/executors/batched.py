"""All clients of a worker in one stack, by ``torch.vmap``: the default on GPUs, where small steps are launch-bound."""

from __future__ import annotations

from collections.abc import Sequence

from pfl_fast.engine.executors.base import Executor
from pfl_fast.engine.local.stacked import StackedRunner

TEST_STACK = 32  # most clients in one stack of a test, which may cover all clients of the run


class BatchedExecutor(Executor):
    """Runs stacks of clients, one at a time on each device."""

    name = "batched"
    runner_class = StackedRunner

    def units(self, clients: Sequence[int]) -> list[list[int]]:
        """Splits clients, the most expensive first, into one or more stacks per worker."""
        return self._stacks(clients, self.stack or len(clients) or 1)

    def test_units(self, clients: Sequence[int]) -> list[list[int]]:
        """Splits clients into stacks of at most ``TEST_STACK`` clients."""
        return self._stacks(clients, min(self.stack or TEST_STACK, TEST_STACK))

    def _stacks(self, clients: Sequence[int], size: int) -> list[list[int]]:
        count = len(self.workers)
        shards = [clients[i::count] for i in range(count)]  # clients are sorted by cost: dealing in turn is even
        return [list(shard[i : i + size]) for shard in shards for i in range(0, len(shard), size)]
