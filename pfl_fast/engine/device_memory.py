"""Estimate of a GPU's memory by the number of clients in a stack, before the first round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from pfl_fast.data.federated import EVALUATION_BATCH, STACKED_EVALUATION, FederatedData, chunk_bytes
from pfl_fast.engine.allocations import Allocations
from pfl_fast.engine.executors import TEST_STACK, BatchedExecutor, Executor
from pfl_fast.engine.local.modules import set_mode
from pfl_fast.engine.local.progress import StackProgress
from pfl_fast.engine.local.runner import WHOLE
from pfl_fast.engine.local.stacked import StackedPhase, StackedRunner
from pfl_fast.engine.local.trainer import with_cached
from pfl_fast.engine.memory import META, MetaClient, size
from pfl_fast.engine.sampling import sample
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Method, Phase
from pfl_fast.ops import dispatch

TRACED = (2, 4)  # clients in the two stacks whose difference is the memory of a client
# Of the free memory: the allocator splits it into blocks, and libraries have workspaces.
USABLE = 0.85


@dataclass(frozen=True)
class DeviceEstimate:
    """Memory of one GPU in bytes, besides the data set, which is there before.

    Attributes:
        fixed: the server's tensors and the uploads of a round.
        tensors: all tensors of one client.
        step: memory of a training step besides the stack's tensors: of a stack without clients, and of each client.
        test: memory of the predictions in a test, for at most ``tested`` clients at a time.
        tested: clients whose samples are predicted at a time.
        test_copies: copies of a client's tensors in a test: gathered in a stack, and adapted before the test.
    """

    fixed: int
    tensors: int
    step: tuple[int, int]
    test: int
    tested: int
    test_copies: int

    def total(self, clients: int) -> int:
        """Returns the memory with stacks of ``clients`` clients."""
        step = self.step[0] + clients * self.step[1]
        tests = self.test_copies * min(clients, TEST_STACK) * self.tensors + min(clients, self.tested) * self.test
        return self.fixed + clients * self.tensors + max(step, tests)

    def most_clients(self, free: int, wanted: int) -> int:
        """Returns the largest stack of at most ``wanted`` clients that fits into ``free`` bytes; at least 1."""
        return next((clients for clients in range(wanted, 1, -1) if self.total(clients) <= USABLE * free), 1)


def estimate_device(
    part_table: PartTable, method: Method, data: FederatedData, settings: RoundSettings, device_type: str = "cuda"
) -> DeviceEstimate:
    """Estimates a GPU's memory from steps on the meta device; raises what a model raises that cannot run there."""
    with dispatch.traced_as(device_type):
        client = MetaClient(part_table, method, data, settings)
        few, many = (MetaStack(client, clients).step_bytes() for clients in TRACED)
        test = client.test_bytes()
    each = max(0, (many - few) // (TRACED[1] - TRACED[0]))
    uploading = len(sample(settings, data.clients, 1).uploading)
    sent = sum(e.value.nbytes for e in (*part_table.uploaded, *part_table.mixed)) * uploading
    samples = max(1, min(EVALUATION_BATCH, int(max(data.test_sizes.max(), data.validation_sizes.max()))))
    return DeviceEstimate(
        fixed=2 * sum(t.nbytes for t in part_table.server_common.values()) + sent,
        tensors=sum(spec.value.nbytes for spec in part_table.specs),
        step=(max(0, few - TRACED[0] * each), each),
        test=test,
        tested=max(STACKED_EVALUATION // samples, 1),
        test_copies=1 + bool(method.before_test(2, "after_agg")),
    )


class MetaStack:
    """A stack of clients on the meta device, where tensors have shapes but no values.

    Args:
        client: the client with the most samples.
        clients: number of clients, all of them like ``client``.
    """

    def __init__(self, client: MetaClient, clients: int) -> None:
        self.client, self.clients = client, clients
        self.runner = StackedRunner(client.part_table, client.method, client.data, META)
        specs = client.part_table.specs
        self.tensors = {e.key: e.value.new_empty((clients, *e.value.shape), device=META) for e in specs}

    def step_bytes(self) -> int:
        """Returns the largest memory of a step of any phase, besides the tensors of the stack."""
        return max(self._phase_bytes(phase) for phase in self.client.method.every_phase())

    def _phase_bytes(self, phase: Phase) -> int:
        client = self.client
        allocations = Allocations()
        with allocations:
            self.step(phase)
        chunk = min(chunk_bytes("cuda"), client.samples(phase) * client.sample.nbytes * self.clients)
        return allocations.most + self._cached_bytes(phase) + chunk

    def step(self, phase: Phase) -> None:
        """Takes one step of a phase on full batches."""
        runner, client = self.runner, self.client
        set_mode(runner.client, client.part_table.parts, training=True)
        recompute = bool(phase.cached) and runner.recomputes_each_step(phase)
        loss = with_cached(phase) if recompute else phase.loss
        names = runner.trained_names(phase)
        progress = StackProgress([0] * self.clients, META)
        run = StackedPhase(runner, phase, loss, [names], progress, self.tensors, {})
        run.step(self._batch(phase, recompute), WHOLE, 0, client.settings.for_phase(phase)).run()

    def _batch(self, phase: Phase, recompute: bool) -> Batch:
        client, seed = self.client, torch.empty((self.clients,), dtype=torch.int64, device=META)
        one = client.batch(client.samples(phase) if phase.whole else min(client.data.batch_size, client.samples(phase)))
        x, y = (t.new_empty((self.clients, *t.shape)) for t in (one.x, one.y))
        with _disable_current_modes():  # computed before the round, not in the step
            cached = {} if recompute else client.cached(phase, one)
        return Batch(x, y, seed, {name: t.new_empty((self.clients, *t.shape)) for name, t in cached.items()})

    def _cached_bytes(self, phase: Phase) -> int:
        if self.runner.recomputes_each_step(phase):
            return 0
        values = self.client.cached(phase, self.client.batch(1))
        return self.clients * self.client.samples(phase) * sum(t.nbytes for t in values.values())


def choose_stack(
    executor: Executor,
    part_table: PartTable,
    method: Method,
    data: FederatedData,
    settings: RoundSettings,
    log: Callable[[str], None],
) -> None:
    """Limits the stacks of a batched executor on GPUs to what fits into their free memory."""
    devices = [worker.device for worker in executor.workers]
    if not isinstance(executor, BatchedExecutor) or executor.stack or devices[0].type != "cuda":
        return
    try:
        needed = estimate_device(part_table, method, data, settings)
    except Exception:  # models may do anything; memory that runs out halves the stack
        return
    wanted = max(map(len, executor.units(sample(settings, data.clients, 1).training)))
    free = free_bytes(devices)
    clients = needed.most_clients(free, wanted)
    if clients < wanted:
        executor.stack = clients
        log(
            f"Stacks of {clients} clients: {wanted} would need about {size(needed.total(wanted))} on each GPU, and "
            f"{size(free)} are free; stack=N sets another number"
        )


def free_bytes(devices: Sequence[torch.device]) -> int:
    """Returns the free memory of the GPU that has least, including what this process holds in reserve."""
    free = [
        torch.cuda.mem_get_info(d)[0] + torch.cuda.memory_reserved(d) - torch.cuda.memory_allocated(d) for d in devices
    ]
    return int(min(free))
