"""Every method on fake CUDA tensors: the bits of a run on the CPU, and no operator mixes devices."""

from functools import cache

import pytest
import torch

from pfl_fast.methods import METHODS
from tests.device import fake_cuda
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

# Clients of different size in both. Tests assert below that the words of a name are what happens.
CASES = {
    "ragged, momentum kept": {
        "sizes": (9, 4, 7, 3),
        "tests": 2,
        "momentum": 0.9,
        "keep_momentum": True,
        "weight_decay": 0.01,
    },
    "partial, batch norm, validation": {
        "sizes": (5, 3, 4),
        "tests": 2,
        "join_ratio": 0.6,
        "model": small.with_batch_norm(),
        "validation": 2,
        "eval_every": 2,
    },
}


def outcome(method, case, executor, device, **values):
    values = {**CASES[case], "executor": executor, "device": device, "log": lambda _: None, **values}
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


def test_cases_are_what_their_names_say():
    tensors, records = on_cpu("fedavg", "partial, batch norm, validation", "batched", 1)
    assert {record["clients_trained"] for record in records} == {1}
    assert any(name.startswith("validation_") for name in records[-1])
    assert any("running_mean" in name for name in tensors)
    kept, _ = on_cpu("fedavg", "ragged, momentum kept", "batched", 1)
    lost, _ = outcome("fedavg", "ragged, momentum kept", "batched", "cpu", keep_momentum=False)
    assert small.differences(kept, lost, 1e-6)
