"""Activations in place become out of place in a stack where no result depends on it."""

import pytest
from torch import nn

from pfl_fast.engine.local.in_place import activations_in_place
from pfl_fast.models import Backbone
from pfl_fast.randomness import torch_seed
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


class Residual(nn.Module):
    """``x + relu(x)``; with the ReLU in place, ``relu(x) + relu(x)`` if the sum reads the input again."""

    def __init__(self, reads_again):
        super().__init__()
        self.relu, self.reads_again = nn.ReLU(inplace=True), reads_again

    def forward(self, x):
        return x + self.relu(x) if self.reads_again else x + self.relu(x.clone())


def model(reads_again):
    with torch_seed(3):
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), Residual(reads_again))
        return Backbone(extractor, nn.Linear(5, small.CLASSES), 5)


def outcome(executor, reads_again):
    with small.trained("fedavg", model=model(reads_again), executor=executor) as running:
        left = activations_in_place(running.round.executor.workers[0].runner.client)
        return small.state_of(running), len(left)


@pytest.mark.parametrize("reads_again", [False, True])
def test_activations_in_place_are_replaced_only_if_nothing_depends_on_them(reads_again):
    expected, _ = outcome("sequential", reads_again)
    found, in_place = outcome("batched", reads_again)
    assert in_place == reads_again
    assert small.differences(found, expected, 1e-9) == {}
    other, _ = outcome("sequential", not reads_again)
    assert small.differences(other, expected, 1e-3), "the two models differ"
