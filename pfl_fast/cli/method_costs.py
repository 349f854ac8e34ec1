"""What a round of a method costs a client, beside FedAvg: counted, not timed, in a small run of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from pfl_fast import ops

CLIENTS, SAMPLES, SHAPE, CLASSES = 2, 20, (1, 28, 28), 10
ROUND = 3  # some methods do more in their first rounds, or less


@dataclass(frozen=True)
class Cost:
    """One client's part of a round with the 4-layer CNN on 28x28 images, with the default options.

    Attributes:
        flops: of local training, and of what clients compute for the server.
        uploaded: numbers that it sends.
        downloaded: numbers that it is sent.
        parameters: of the model.
    """

    flops: float
    uploaded: float
    downloaded: float
    parameters: int

    def times(self, other: Cost) -> float:
        """How often the other's arithmetic fits into this one's."""
        return self.flops / other.flops


@cache
def cost_of(method: str) -> Cost:
    """Runs a few rounds on generated images and counts."""
    from pfl_fast.data.synthetic import synthetic
    from pfl_fast.experiment import Experiment
    from pfl_fast.models import build

    experiment = Experiment(
        method,
        dataset=synthetic(2 * CLIENTS * SAMPLES, SHAPE, CLASSES, seed=0),
        model="cnn",
        partition="iid",
        clients=CLIENTS,
        per_client=SAMPLES,
        batch_size=10,
        rounds=100,
        eval_every=100,
        executor="sequential",
        device="cpu",
        on_nan="report",
        report=lambda _: None,
    )
    counter = FlopCounterMode(display=False)
    with one_thread(), ops.use("reference"):  # plain torch, whose arithmetic can be counted
        for _ in range(ROUND - 1):
            experiment.server.round()
        with counter:
            record = experiment.server.round().values
    experiment.close()
    parameters = sum(p.numel() for p in build("cnn", input_shape=SHAPE, classes=CLASSES).parameters())
    moved = (record["uploaded_values"] / CLIENTS, record["downloaded_values"] / CLIENTS)
    return Cost(counter.get_total_flops() / CLIENTS, *moved, parameters)


@contextmanager
def one_thread() -> Iterator[None]:
    """So little work only loses by being split."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_words(cost: Cost) -> list[str]:
    """For a person to read."""
    fedavg = cost_of("fedavg")
    up, down = (moved / cost.parameters for moved in (cost.uploaded, cost.downloaded))
    return [
        f"arithmetic: {cost.times(fedavg):.2f} x FedAvg's",
        f"moved: {up:.2f} models up, {down:.2f} models down",
        f"counted in one round of a client with the 4-layer CNN on 28x28 images ({cost.parameters:,} parameters)",
    ]
