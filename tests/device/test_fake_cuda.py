"""Every method on fake CUDA tensors: the bits of a run on the CPU, and no operator mixes devices."""

from functools import cache

import pytest
import torch

from pfl_fast.methods import METHODS
from tests.device import fake_cuda
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

SMALL = {"sizes": (5, 3, 4), "tests": 2}
CASES = {
    "ragged": {"sizes": (9, 4, 7, 3), "tests": 2},
    "partial": {**SMALL, "join_ratio": 0.6, "weight_decay": 0.01},
    "batch norm": {**SMALL, "join_ratio": 0.6, "model": small.with_batch_norm()},
    "momentum kept": {**SMALL, "momentum": 0.9, "keep_momentum": True},
    "validation": {**SMALL, "validation": 2, "eval_every": 2},
}


def outcome(method, case, executor, device):
    values = {**CASES[case], "executor": executor, "device": device, "log": lambda _: None}
    with small.trained(method, **values) as running:
        tensors = {name: fake_cuda.values_of(tensor) for name, tensor in small.state_of(running).items()}
        return tensors, small.untimed_records(running)


@cache
def on_cpu(method, case, executor, workers):
    return outcome(method, case, executor, ",".join(["cpu"] * workers))


@pytest.mark.parametrize("gpus", [1, 2], indirect=True, ids=["one GPU", "two GPUs"])
@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_cuda_has_the_bits_of_the_cpu(method, case, executor, gpus):
    workers = len(gpus.split(",")) if executor == "batched" else 1
    tensors, records = on_cpu(method, case, executor, workers)
    with fake_cuda.recorded() as record:
        got_tensors, got_records = outcome(method, case, executor, gpus)
    assert not record.mixed
    assert got_tensors.keys() == tensors.keys()
    assert [name for name, value in got_tensors.items() if not torch.equal(value, tensors[name])] == []
    assert got_records == records
