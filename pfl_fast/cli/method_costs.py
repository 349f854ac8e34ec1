"""Cost of a round per client: FLOPs of the method's losses and values sent, counted without training.

FLOPs depend on shapes only: each loss is evaluated once per batch size and multiplied by its number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from pfl_fast import ops
from pfl_fast.assembly import find_method, method_context, model_options, part_table_settings, resolve
from pfl_fast.engine.kernel_counts import KernelCounter
from pfl_fast.engine.results.records import RoundRecord
from pfl_fast.engine.sampling import Cohort
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Client, Method, Phase, Tensors
from pfl_fast.models import build

CLIENTS, BATCH_SIZE, SHAPE, CLASSES = 2, 10, (1, 28, 28), 10
TRAINED, HELD = 20, 30  # samples of a client: used for training, and available before validation samples are held out
ROUND = 3  # some methods train longer or shorter in their first rounds


@dataclass(frozen=True)
class Cost:
    """Cost of one round for one client: 4-layer CNN, 28x28 images, default options.

    Attributes:
        flops: FLOPs of local training and of losses that the client computes for the server.
        uploaded: number of values sent to the server.
        downloaded: number of values received from the server.
        parameters: number of parameters of the model.
    """

    flops: float
    uploaded: float
    downloaded: float
    parameters: int

    def lines(self) -> list[str]:
        """Returns the cost as text, relative to FedAvg and to the size of the model."""
        ratio = self.flops / cost_of("fedavg").flops
        up, down = self.uploaded / self.parameters, self.downloaded / self.parameters
        return [
            f"FLOPs: {ratio:.2f} x FedAvg's",
            f"communication: {up:.2f} x the model's parameters uploaded, {down:.2f} x downloaded",
            f"counted for the 4-layer CNN ({self.parameters:,} parameters) on 28x28 images with the default options",
        ]


@cache
def cost_of(name: str) -> Cost:
    """Returns the cost of the method ``name``."""
    example = Example(name)
    everyone = list(range(CLIENTS))
    record = RoundRecord(ROUND, evaluated=False, cohort=Cohort(everyone, everyone, everyone), skipped=[])
    record.add_traffic(example.part_table, record.cohort, CLIENTS, ROUND)
    with ops.use("reference"):  # native operators have no FLOP formulas
        flops = sum(example.phase_flops(phase) for phase in example.method.phases(ROUND)) + example.mixture_flops()
    uploaded, downloaded = (record.values[name] / CLIENTS for name in ("uploaded_values", "downloaded_values"))
    return Cost(flops, uploaded, downloaded, example.parameters)


class Example:
    """A method with its default options in a small federation."""

    def __init__(self, name: str) -> None:
        method_class = find_method(name)
        resolved = resolve(method_class, {"batch_size": BATCH_SIZE}, "cnn")
        self.settings = resolved.settings
        backbone = build("cnn", input_shape=SHAPE, classes=CLASSES, **model_options(self.settings.model_options))
        dataset: Any = SimpleNamespace(classes=range(CLASSES), input_shape=SHAPE, vocabulary=0)
        partition: Any = SimpleNamespace(clients=CLIENTS)
        context = method_context(dataset, partition, self.settings, method_class, backbone, "cnn")
        self.method: Method = method_class(resolved.options, context)
        self.parameters = sum(parameter.numel() for parameter in backbone.parameters())
        self.parts = self.method.parts(backbone)
        self.part_table = PartTable(self.parts, **part_table_settings(self.settings, self.method))
        self.client: Client = self.part_table.client

    def phase_flops(self, phase: Phase) -> float:
        """Returns the FLOPs of a phase: per-sample caches, computed once per round, and gradients of all steps."""
        batch_size = TRAINED if phase.whole else BATCH_SIZE
        sizes = [min(batch_size, TRAINED - start) for start in range(0, TRAINED, batch_size)]
        used = sizes[: phase.limit(len(sizes))] if phase.limit else sizes
        trained = phase.rotation or (phase.train,)
        steps = Counter((size, trained[number % len(trained)]) for number, size in enumerate(used))
        epoch = sum(count * self.step_flops(phase, size, parts) for (size, parts), count in steps.items())
        return flops_of(lambda: self.batch(TRAINED, phase)) + phase.epochs * phase.repeats * epoch

    def step_flops(self, phase: Phase, size: int, parts: Sequence[str]) -> int:
        """Returns the FLOPs of the gradients of ``parts`` in one step on ``size`` samples."""
        batch = self.batch(size, phase)
        parameters = {n: p for n, p in self.client.named_parameters() if n.split(".")[0] in parts and p.requires_grad}

        def gradient_at(_values: Tensors, samples: slice = slice(None), **_: Any) -> Tensors:
            cached = {name: value[samples] for name, value in batch.cached.items()}
            loss, _recorded = phase.loss(self.client, Batch(batch.x[samples], batch.y[samples], batch.seed, cached))
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}

        if phase.custom_gradient is None:
            return flops_of(lambda: gradient_at({}))
        custom_gradient: Any = phase.custom_gradient
        values = {name: parameter.detach() for name, parameter in parameters.items()}
        return flops_of(lambda: custom_gradient(gradient_at, values, size, self.settings.lr))

    def mixture_flops(self) -> float:
        """Returns the FLOPs of losses that a client computes for the server, such as FedFomo's validation losses."""
        if not self.part_table.mixed:
            return 0
        uploads = {str(e.upload_to): torch.stack([e.value] * CLIENTS) for e in self.part_table.uploaded}
        tested: list[tuple[int, Tensors]] = []

        def losses(candidates: Sequence[tuple[int, Tensors]]) -> list[float]:
            tested.extend(candidates)
            return [0.0] * len(candidates)

        inputs: Any = SimpleNamespace(
            clients=range(CLIENTS),
            uploads=uploads,
            server=self.part_table.new_server(),
            tensors=lambda _: self.part_table.common,
            losses=losses,
        )
        self.method.mixture(inputs)
        batch = self.batch(int(HELD * self.settings.validation) or TRAINED)
        with torch.no_grad():
            return len(tested) / CLIENTS * flops_of(lambda: self.method.predict(self.client, batch))

    def batch(self, size: int, phase: Phase | None = None) -> Batch:
        """Returns ``size`` blank samples, and the values that ``phase`` caches for them."""
        x, y = torch.zeros(size, *SHAPE), torch.zeros(size, dtype=torch.int64)
        with torch.no_grad():
            cached = {name: cache.compute(self.client, x) for name, cache in phase.cached.items()} if phase else {}
        return Batch(x, y, torch.tensor(0), cached)


def flops_of(function: Callable[[], Any]) -> int:
    """Returns the FLOPs of ``function()``."""
    with KernelCounter() as counter:
        function()
    return sum(kernel.flops for kernel in counter.kernels)
