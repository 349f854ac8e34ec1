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


def test_tensors_of_clients_stay_on_the_gpu(gpus):
    values = {"momentum": 0.9, "keep_momentum": True, "join_ratio": 0.6, "sizes": (4, 4, 4, 4)}
    _, copied, _ = traffic("fedpick", gpus, **values)
    shorter, first, _ = traffic("fedpick", gpus, rounds=1, **values)
    with small.trained("fedpick", device="cpu", rounds=1, **values) as running:
        state = running.part_table.bytes_per_client()
    assert sum(copied.values()) - sum(first.values()) < state, "less than the state of one client in the second round"
    assert shorter["to host"] > 0


@pytest.mark.parametrize("executor", ["batched", "sequential"])
def test_tensors_that_do_not_fit_stay_in_main_memory(executor, gpus, monkeypatch):
    values = {"sizes": (9, 4, 7, 3), "momentum": 0.9, "keep_momentum": True, "executor": executor}
    values["log"] = lambda _: None
    with small.trained("fedpick", device="cpu", **values) as running:
        expected, records = small.state_of(running), small.untimed_records(running)
    monkeypatch.setattr(fake_cuda, "MEMORY", 100)
    with fake_cuda.recorded() as record, small.trained("fedpick", device=gpus, **values) as running:
        assert running.state.clients.device == torch.device("cpu")
        tensors = {name: fake_cuda.values_of(tensor) for name, tensor in small.state_of(running).items()}
        assert small.untimed_records(running) == records
    assert not record.mixed
    assert small.differences(tensors, expected, 0) == {}


def test_waits_do_not_grow_with_clients_whose_tensors_do_not_fit(gpus, monkeypatch):
    monkeypatch.setattr(fake_cuda, "MEMORY", 100)
    few, many = (traffic("fedpick", gpus, (4,) * clients, stack=5) for clients in (2, 5))
    assert many[2] == few[2]


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_shared_tensors_are_sent_once_per_gpu_and_round(gpus):
    with small.trained("fedavg", device="cpu", sizes=(4,) * 8) as running:
        model = sum(tensor.nbytes for tensor in running.state.server.values())
    for stack in (1, 2):
        copied = traffic("fedavg", gpus, (4,) * 8, stack=stack)[1]["between devices"]
        # Which GPU trains a client depends on which one is idle: at most 7 clients train on the other one.
        assert copied <= 2 * 7 * model + 3 * model


def test_uploads_of_one_stack_are_not_copied(gpus):
    with fake_cuda.recorded(), small.trained("fedavg", executor="batched", device=gpus, sizes=(4,) * 3) as running:
        assert running.round.upload_memory == {}
    with small.trained("fedavg", executor="batched", device="cpu", sizes=(4, 9, 4)) as running:
        assert running.round.upload_memory.keys() == running.state.server.keys()
