"""Estimate of the seconds of a round on a GPU, from counted operators and a cost model. Nothing runs on a GPU.

    seconds of an operator = max(launches x LAUNCH, bytes / bandwidth, FLOPs / peak)

Operators follow one another. In a step of a stack in which only some clients have a batch left, bytes and FLOPs shrink
with their number, launches do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import torch

from pfl_fast.data.federated import EVALUATION_BATCH, FederatedData
from pfl_fast.engine.device_memory import DeviceEstimate, MetaStack, estimate_device
from pfl_fast.engine.kernel_counts import Kernel, KernelCounter
from pfl_fast.engine.local.modules import stacked
from pfl_fast.engine.memory import META, MetaClient
from pfl_fast.engine.sampling import sample
from pfl_fast.engine.settings import RoundSettings
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Method, Phase
from pfl_fast.ops import dispatch

LAUNCH = 10e-6  # seconds of the host per launch: an assumption for eager PyTorch with autograd and vmap


@dataclass(frozen=True)
class Gpu:
    """Figures of a data sheet: bytes of memory, bytes per second, FLOPs per second by precision (without sparsity)."""

    title: str
    memory: float
    bandwidth: float
    peak: dict[str, float]

    def seconds(self, kernels: Sequence[Kernel], precision: str, share: float = 1.0) -> float:
        """Returns the seconds of operators with ``share`` of their bytes and FLOPs."""
        peak = self.peak[precision]
        return sum(max(k.launches * LAUNCH, share * k.bytes / self.bandwidth, share * k.flops / peak) for k in kernels)


GPUS = {
    "a100": Gpu("A100 (40 GB)", 40e9, 1555e9, {"highest": 19.5e12, "tf32": 156e12, "bf16": 312e12}),
    "h100": Gpu("H100 (80 GB)", 80e9, 3350e9, {"highest": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12}),
    "4090": Gpu("RTX 4090 (24 GB)", 24e9, 1008e9, {"highest": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12}),
}


@dataclass(frozen=True)
class StepCost:
    """A training step of a full stack: operators of one step, number of steps per round, and their seconds."""

    launches: int
    bytes: int
    flops: int
    seconds: float
    steps: int
    seconds_per_round: float


@dataclass(frozen=True)
class Plan:
    """Estimate of a round on one GPU.

    Attributes:
        stack: clients in a stack, as many as fit.
        memory: estimated bytes of GPU memory.
        phases: cost of the training steps of each phase.
        tests: seconds of the tests of a round.
        aggregation: seconds to average the uploads.
    """

    stack: int
    memory: int
    phases: list[StepCost]
    tests: float
    aggregation: float

    @property
    def seconds(self) -> float:
        """Seconds of a round."""
        return sum(phase.seconds_per_round for phase in self.phases) + self.tests + self.aggregation

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures by name."""
        return {**asdict(self), "seconds": self.seconds}


def plan_round(
    part_table: PartTable,
    method: Method,
    data: FederatedData,
    settings: RoundSettings,
    gpu: Gpu,
    precision: str,
    stack: int = 0,
) -> Plan:
    """Counts the operators of a round on the meta device and returns its estimated cost.

    Args:
        part_table: the part table.
        method: the method.
        data: client data.
        settings: settings of the rounds.
        gpu: the GPU.
        precision: ``"highest"``, ``"tf32"`` or ``"bf16"``.
        stack: most clients in a stack; 0: as many as fit into memory.
    """
    clients = sample(settings, data.clients, 1).training
    needed = estimate_device(part_table, method, data, settings)
    free = int(gpu.memory - data.bytes)
    size = min(stack or needed.most_clients(free, len(clients)), len(clients))
    with dispatch.traced_as("cuda"):
        traced = MetaStack(MetaClient(part_table, method, data, settings), size)
        units = [clients[i : i + size] for i in range(0, len(clients), size)]
        phases = [phase_cost(traced, phase, units, gpu, precision) for phase in method.phases(settings.rounds)]
        tests = evaluation_seconds(traced, needed, settings, gpu, precision)
    sent = sum(spec.value.nbytes for spec in part_table.uploaded)
    moved = Kernel("aggregate", 1, (len(clients) + 1) * sent, 0)
    aggregation = gpu.seconds([moved], precision)
    return Plan(size, needed.total(size) + data.bytes, phases, tests, aggregation)


def phase_cost(traced: MetaStack, phase: Phase, units: Sequence[Sequence[int]], gpu: Gpu, precision: str) -> StepCost:
    """Returns the cost of one phase in all stacks of a round."""
    with KernelCounter() as counter:
        traced.step(phase)
    kernels, data = counter.kernels, traced.runner.source(phase)
    steps, seconds = 0, 0.0
    for unit in units:
        counts = [data.steps(client) for client in unit]
        counts = [phase.limit(count) if phase.limit else count for count in counts]
        active = [sum(count > number for count in counts) for number in range(max(counts, default=0))]
        steps += phase.epochs * len(active)
        seconds += phase.epochs * sum(gpu.seconds(kernels, precision, now / traced.clients) for now in active)
    return StepCost(
        launches=sum(kernel.launches for kernel in kernels),
        bytes=sum(kernel.bytes for kernel in kernels),
        flops=sum(kernel.flops for kernel in kernels),
        seconds=gpu.seconds(kernels, precision),
        steps=steps,
        seconds_per_round=seconds,
    )


def evaluation_seconds(
    traced: MetaStack, needed: DeviceEstimate, settings: RoundSettings, gpu: Gpu, precision: str
) -> float:
    """Returns the seconds of all predictions of the tests of a round, averaged over rounds."""
    runner, data = traced.runner, traced.client.data
    together, most = min(traced.clients, needed.tested), int(data.test_sizes.max())
    if not most:
        return 0.0
    runner.client.eval()
    batch = traced.client.batch(min(most, EVALUATION_BATCH))
    tensors = {name: traced.tensors[name][:together] for name in runner.model_names}
    x, y = (t.new_empty((together, *t.shape)) for t in (batch.x, batch.y))
    seed = torch.empty((together,), dtype=torch.int64, device=META)
    with torch.no_grad(), KernelCounter() as counter:
        stacked(runner.client, runner.method.predict, runner.seed_names)(tensors, x, y, seed, {})
    chunks = ceil(data.clients / together) * ceil(most / EVALUATION_BATCH)
    tests = (2 if settings.eval_at == "both" else 1) / settings.eval_every
    return tests * chunks * gpu.seconds(counter.kernels, precision)
