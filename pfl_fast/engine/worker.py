"""A worker: one device with modules, scratch memory and everything needed to train and test a unit of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.client_results import Score
from pfl_fast.engine.local.arithmetic import with_bf16_products
from pfl_fast.engine.local.capture import Programs
from pfl_fast.engine.local.graphs import Graphs
from pfl_fast.engine.local.modules import bind
from pfl_fast.engine.local.optimizer import StepSettings, write
from pfl_fast.engine.local.runner import Runner
from pfl_fast.engine.local.single import SingleRunner, predictions
from pfl_fast.engine.local.trainer import Trainer
from pfl_fast.engine.results.metrics import Metric
from pfl_fast.engine.results.scores import PendingScore, pending_scores, read_scores
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Client, Method, Phase, Tensors
from pfl_fast.randomness import key


@dataclass(frozen=True)
class TestSettings:
    """Settings of a test.

    Attributes:
        seed: seed of the run.
        round: round of the test, for noise in predictions.
        whole_batches: drop samples beyond a multiple of this number; 0: drop none.
        bf16: compute products of predictions in bfloat16.
    """

    __test__ = False  # not a test class of pytest

    seed: int
    round: int
    whole_batches: int = 0
    bf16: bool = False

    def noise(self, client: int, batch: int) -> int:
        """Returns the seed of the noise in a prediction; ``client`` is -1 for the server's model."""
        return key(self.seed, "evaluation", client, self.round, batch)


class Worker:
    """Trains and tests units of clients on one device.

    Args:
        runner_class: runs one client or a stack of clients.
        metrics: metrics of the tests, by name.
        stop: asked between training steps; True ends the run.
        programs: programs of recorded steps, shared by all workers.
    """

    def __init__(
        self,
        runner_class: type[Runner],
        part_table: PartTable,
        method: Method,
        data: FederatedData,
        metrics: Mapping[str, Metric],
        device: torch.device,
        stop: Callable[[], bool],
        programs: Programs,
    ) -> None:
        self.part_table = part_table
        self.method = method
        self.metrics = metrics
        self.data = data.to(device)
        self.device = device
        self.single = SingleRunner(part_table, method, self.data, device)
        same = runner_class is SingleRunner
        self.runner: Runner = self.single if same else runner_class(part_table, method, self.data, device)
        captures = programs.enabled and device.type == "cuda" and not same
        self.trainer = Trainer(self.runner, stop, Graphs() if captures else programs if device.type == "cpu" else None)
        self._received: dict[str, tuple[Tensor, Tensor]] = {}
        self._server: Client | None = None  # modules of the server, made by the first test of its model

    def received(self, server: Tensors) -> Tensors:
        """Returns the server's tensors on this device; each is copied once, until the server replaces it."""
        for name, tensor in server.items():
            if name not in self._received or self._received[name][0] is not tensor:
                self._received[name] = tensor, tensor.to(self.device)
        return {name: self._received[name][1] for name in server}

    def adapt(
        self, runner: Runner, clients: list[int], views: Sequence[Tensors], phases: Sequence[Phase], step: StepSettings
    ) -> Tensors:
        """Returns copies of clients' tensors after training ``phases``, such as the phases before a test.

        The training is never interrupted: a round whose clients have trained must be recorded.
        """
        copies = runner.copy(views)
        for row in range(len(clients)):
            own = runner.row(copies, row)
            write(self.method.on_receive(own, at="start"), own)
        Trainer(runner, lambda: False).run_phases(clients, copies, phases, step)
        return copies

    def test(
        self, runner: Runner, clients: Sequence[int], tensors: Tensors, split: str, settings: TestSettings
    ) -> list[PendingScore]:
        """Returns the score of each client of a unit on its own samples of ``split``, still on the device."""
        predict = with_bf16_products(self.method.predict, settings.bf16)
        outputs = runner.logits(predict, clients, tensors, split, settings.noise)
        return pending_scores([_cut(*output, settings.whole_batches) for output in outputs], self.metrics)

    def test_global(self, tensors: Tensors, settings: TestSettings) -> Score | None:
        """Returns the score of the server's model on the union of the clients' test samples.

        None if the method has no global model, or there are no test samples.
        """
        if self._server is None:
            server = Client({name: deepcopy(module) for name, module in self.part_table.server_parts.items()})
            self._server = server.to(self.device).eval()
        server = self._server
        bind(server, tensors, set())
        first = next(self.data.evaluation("test", None, batch_size=1), None)
        if first is None:
            return None
        with torch.no_grad():
            if (
                self.method.predict_global(
                    server, Batch(*first, torch.zeros((), dtype=torch.int64, device=self.device))
                )
                is None
            ):
                return None
        predict = with_bf16_products(self.method.predict_global, settings.bf16)
        outputs = predictions(predict, server, self.data, "test", None, settings.noise)
        return read_scores(pending_scores([outputs], self.metrics))[0]


def _cut(logits: Tensor, labels: Tensor, whole_batches: int) -> tuple[Tensor, Tensor]:
    """Returns the outputs without the samples beyond a multiple of ``whole_batches``; all if there are fewer."""
    used = len(labels) // whole_batches * whole_batches if whole_batches else 0
    return (logits[:used], labels[:used]) if used else (logits, labels)
