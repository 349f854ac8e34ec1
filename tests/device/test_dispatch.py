"""Models choose what runs on CUDA; results stay those of the CPU."""

from functools import partial

import pytest
from torch import nn

from pfl_fast.models import Backbone
from pfl_fast.nn import ConvReluPool, conv_relu_pool
from pfl_fast.randomness import torch_seed
from tests.device import fake_cuda
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


def model():
    with torch_seed(6):
        layers = [ConvReluPool(2, 3, 3, padding=1), ConvReluPool(3, 4, 2, padding=1), nn.Flatten()]
        return Backbone(nn.Sequential(*layers), nn.Linear(16, small.CLASSES), 16)


def outcome(executor, device):
    dataset = small.images(40, shape=(6, 6, 2))
    values = {"sizes": (5, 3, 4), "executor": executor, "device": device, "log": lambda _: None}
    with small.trained("fedcp", dataset=dataset, model=model(), **values) as running:
        tensors = {name: fake_cuda.values_of(tensor) for name, tensor in small.state_of(running).items()}
        return tensors, small.untimed_records(running)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_small_convolutions_are_plain_torch_on_cuda(executor, gpus, monkeypatch):
    expected, records = outcome(executor, "cpu")
    calls = []
    for name in ("by_product", "by_convolution"):
        compute = getattr(conv_relu_pool, name)
        spy = partial(lambda name, compute, *inputs: (calls.append(name), compute(*inputs))[1], name, compute)
        monkeypatch.setattr(conv_relu_pool, name, spy)
    with fake_cuda.recorded() as record:
        tensors, got = outcome(executor, gpus)
    assert not record.mixed
    assert "by_convolution" in calls
    assert ("by_product" in calls) == (executor == "batched")
    assert small.differences(tensors, expected, 1e-9) == {}
    small.assert_same_records(got, records, 1e-9)
