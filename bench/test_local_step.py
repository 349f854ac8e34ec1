"""One step of local training of the papers' CNN on ten images of MNIST's size: the engine's own, and plain torch's.

With one thread, as the engine has one client per core. Loss, gradients and the step of SGD: what the yardstick does,
eager and by torch.compile, whose compilation is not counted. FedCP's frozen features are outside the engine's step,
which has them once per round, and inside the yardstick's.
"""

from __future__ import annotations

import pytest
import torch

from bench.end_to_end.twin import client_of
from pfl_fast import Experiment
from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.local.modules import bind, set_mode
from pfl_fast.methods.base import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH = 10


def one_client(method):
    return Experiment(
        method,
        dataset=synthetic(4 * BATCH, (1, 28, 28), 10),
        partition="iid",
        clients=1,
        model="cnn",
        batch_size=BATCH,
        executor="sequential",
        report=lambda _: None,
    )


def engine_step(experiment, x, y):
    """As :meth:`pfl_fast.engine.local.single.SingleTrainer.phase` takes it, with the features that it takes once."""
    run = experiment.round
    worker, (phase,) = run.executor.workers[0], run.method.phases(1)
    trainer, tensors = worker.single, worker.load([run.state.clients.view(0, run.state.server)], stack=False)
    set_mode(trainer.client, trainer.part_table.parts, training=True)
    bind(trainer.client, tensors, set(trainer.trained_keys(phase)))
    parameters = {name: trainer.client.get_parameter(name) for name in trainer.trained_keys(phase)}
    batch = Batch(x, y, torch.tensor(1), trainer.once(phase, x))
    return lambda: trainer.step(phase, batch, parameters, tensors, run.step_settings(1))


def plain_step(experiment, x, y, compiles):
    client, x = client_of(experiment, 0), x.contiguous()
    optimizer = torch.optim.SGD(client.trained(), lr=experiment.settings.lr)
    loss_of = torch.compile(client.loss, dynamic=False) if compiles else client.loss

    def step():
        optimizer.zero_grad()
        loss_of(x, y).backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedcp"])
def test_local_step(race, method):
    experiment = one_client(method)
    x, y = experiment.data.take(experiment.data.indices("train", 0)[:BATCH])
    race(
        {
            "engine": engine_step(experiment, x, y),
            "plain torch": plain_step(experiment, x, y, compiles=False),
            "torch.compile of it": plain_step(experiment, x, y, compiles=True),
        },
        goals={"torch.compile of it": 1.0},
    )
    experiment.close()
