"""Copies and waits of a round on fake GPUs: how many there are, and that they do not grow."""

from collections import Counter

import pytest
import torch
from torch import nn

from pfl_fast.models import Backbone
from pfl_fast.randomness import torch_seed
from tests.device import fake_cuda
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

# Phases with cached values, hooks, several gradients per step, rotation, adaptation before tests, kept tensors.
METHODS = ("fedcp", "fedpick", "fedala", "fedrep", "pfedme", "pfedvem", "fedproto", "fedafk", "ditto")


def traffic(method, gpus, sizes=(8, 8, 8), **values):
    """Copies by direction, bytes by direction and waits of a run, whatever caused them."""
    values = {"executor": "batched", "device": gpus, "log": lambda _: None, "sizes": sizes, **values}
    with fake_cuda.recorded() as record, small.trained(method, **values):
        copies, copied = Counter(), Counter()
        for (direction, _), number in record.copies.items():
            copies[direction] += number
        for (direction, _), number in record.copied_bytes.items():
            copied[direction] += number
        return copies, copied, sum(record.synchronisations.values())


def deeper(width=5):
    with torch_seed(1):
        layers = [nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)]
        return Backbone(nn.Sequential(nn.Flatten(), *layers), nn.Linear(width, small.CLASSES), width)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_copies_nothing_and_waits_for_nothing(method, gpus):
    few, many = (traffic(method, gpus, sizes) for sizes in ((4, 4), (20, 20)))
    assert many[0] == few[0]
    assert many[2] == few[2]


@pytest.mark.parametrize("method", METHODS)
def test_waits_do_not_grow_with_clients_and_layers(method, gpus):
    few, many = traffic(method, gpus, (4,) * 2), traffic(method, gpus, (4,) * 5, model=deeper())
    assert many[0]["to host"] == few[0]["to host"]
    assert many[2] == few[2]
