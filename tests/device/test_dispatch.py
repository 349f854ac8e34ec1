"""What models and metrics choose on CUDA: results stay those of the CPU, up to rounding."""

from contextlib import contextmanager

import pytest
from torch import nn

from pfl_fast.methods import METHODS
from pfl_fast.models import Backbone
from pfl_fast.nn import ConvReluPool, conv_relu_pool
from pfl_fast.nn.linear import StackedLinear
from pfl_fast.ops import dispatch
from pfl_fast.randomness import torch_seed
from tests.device import fake_cuda
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture
def choices_of_cuda(gpus, monkeypatch):
    monkeypatch.setattr(dispatch, "_traced", "cuda")
    return gpus


@contextmanager
def calls_of(monkeypatch, *places):
    """Names of the functions ``(object, attribute)`` that are called."""
    calls = set()

    def spied(owner, name):
        compute = getattr(owner, name)
        label = f"{owner.__name__.rpartition('.')[2]}.{name}"
        return lambda *inputs: (calls.add(label), compute(*inputs))[1]

    with monkeypatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, spied(owner, name))
        yield calls


def convolutions():
    with torch_seed(6):
        layers = [ConvReluPool(2, 3, 3, padding=1), ConvReluPool(3, 4, 2, padding=1), nn.Flatten()]
        return Backbone(nn.Sequential(*layers), nn.Linear(16, small.CLASSES), 16)


def outcome(method, device, **values):
    values = {"sizes": (5, 3, 4), "executor": "batched", "device": device, "log": lambda _: None, **values}
    with small.trained(method, **values) as running:
        tensors = {name: fake_cuda.values_of(tensor) for name, tensor in small.state_of(running).items()}
        return tensors, small.untimed_records(running)


def assert_same(found, expected):
    assert small.differences(found[0], expected[0], 1e-9) == {}
    small.assert_same_records(found[1], expected[1], 1e-9)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_small_convolutions_are_plain_torch_on_cuda(executor, choices_of_cuda, monkeypatch):
    values = {"dataset": small.images(40, shape=(6, 6, 2)), "model": convolutions(), "executor": executor}
    expected = outcome("fedcp", "cpu", **values)
    stack = (conv_relu_pool.StackedConvReluPool, "apply")
    with calls_of(monkeypatch, (conv_relu_pool, "by_convolution"), stack) as calls, fake_cuda.recorded() as record:
        found = outcome("fedcp", choices_of_cuda, **values)
    assert not record.mixed
    assert "conv_relu_pool.by_convolution" in calls, "by the server's model, too"
    assert ("StackedConvReluPool.apply" in calls) == (executor == "batched")
    assert_same(found, expected)


METRICS = ("balanced_accuracy", "macro_f1", "per_class_accuracy")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_results_of_the_cpu(method, choices_of_cuda, monkeypatch):
    values = {"sizes": (5, 9, 4), "metrics": METRICS, "validation": 2}
    expected = outcome(method, "cpu", **values)
    with calls_of(monkeypatch, (StackedLinear, "apply")) as calls, fake_cuda.recorded() as record:
        found = outcome(method, choices_of_cuda, **values)
    assert not record.mixed
    assert calls or method == "centralised"
    assert_same(found, expected)
