"""One local training step of the papers' CNN on ten MNIST-sized images: the engine against plain torch.

Uses one thread, since the engine trains one client per core. A step is loss, gradients and SGD; the yardstick's runs
eagerly and with torch.compile, without compilation time. FedCP's frozen features are computed in the yardstick's step,
but not in the engine's, which caches them once per round.
"""

from __future__ import annotations

import pytest
import torch

from bench.end_to_end.to_yardstick import client_of
from pfl_fast import Experiment
from pfl_fast.data.synthetic import synthetic
from pfl_fast.engine.local.modules import set_mode
from pfl_fast.engine.local.progress import SingleProgress
from pfl_fast.engine.local.single import SinglePhase
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
        log=lambda _: None,
    )


def engine_step(experiment, x, y):
    """Returns one step of the engine, with the cached features it computes once per round."""
    worker, settings = experiment.round.executor.workers[0], experiment.round.step_settings(1)
    runner, (phase,) = worker.single, experiment.method.phases(1)
    view = experiment.round.state.clients.view(0, experiment.round.state.server)
    tensors, write_buffers = runner.load([view], [phase], settings)
    set_mode(runner.client, runner.part_table.parts, training=True)
    names, progress = runner.trained_names(phase), SingleProgress([0], worker.device)
    run = SinglePhase(runner, phase, phase.loss, [names], progress, tensors, write_buffers)
    with torch.no_grad():
        cached = {name: cache.compute(runner.client, x) for name, cache in phase.cached.items()}
    batch = Batch(x, y, torch.tensor(1), cached)

    def step():
        step = run.step(batch, slice(None), 0, settings)
        step.run()
        return step.loss.item()

    return step


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
