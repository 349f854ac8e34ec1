"""A GPU whose memory is too small for the stack: a smaller one is chosen, or found by trying."""

from types import SimpleNamespace

import pytest
import torch

from pfl_fast.engine.client_work import ClientWork
from pfl_fast.engine.device_memory import DeviceEstimate, estimate_device
from pfl_fast.engine.local.trainer import Trainer
from pfl_fast.engine.out_of_memory import InHalves, OutOfMemory
from pfl_fast.methods import METHODS
from tests.device import fake_cuda
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


def outcome(device, method="fedcp", **values):
    """Tensors, records, messages and the final size of stacks of a run."""
    messages = []
    values = {"executor": "batched", "momentum": 0.9, "keep_momentum": True, **values}
    with small.trained(method, device=device, log=messages.append, **values) as running:
        tensors = {name: fake_cuda.values_of(tensor) for name, tensor in small.state_of(running).items()}
        return tensors, small.untimed_records(running), messages, running.round.executor.stack


def assert_same(mine, theirs):
    assert small.differences(mine[0], theirs[0], 1e-9) == {}
    small.assert_same_records(mine[1], theirs[1], 1e-9)


def exhausted_above(most, monkeypatch):
    """Makes training run out of memory with more than ``most`` clients; returns the sizes of all attempts."""
    train, attempts = Trainer.train, []

    def limited(self, clients, *rest):
        attempts.append(len(clients))
        if len(clients) > most and self.runner.device.type == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")
        return train(self, clients, *rest)

    monkeypatch.setattr(Trainer, "train", limited)
    return attempts


@pytest.mark.parametrize("method", ["fedcp", "fedala", "fedfomo"])
def test_exhausted_memory_halves_the_stack_and_changes_no_result(method, gpus, monkeypatch):
    expected = outcome("cpu", method)
    attempts = exhausted_above(2, monkeypatch)
    with fake_cuda.recorded() as record:
        found = outcome(gpus, method)
    assert not record.mixed
    assert_same(found, expected)
    assert attempts.count(len(small.RAGGED)) == 1, "only the first attempt is too large"
    assert found[3] == 2
    (text,) = [text for text in found[2] if "too little memory" in text]
    assert text.startswith(
        "cuda:0 has too little memory for a stack of 5 clients; continuing with stacks of 2. stack=2"
    )


def test_clients_that_have_trained_do_not_train_again(gpus, monkeypatch):
    """Memory is exhausted in the stack of all clients, and in the second of the stacks of two that follow."""
    expected = outcome("cpu")
    upload, units = ClientWork._upload, []

    def exhausted_twice(self, runner, unit, rows, tensors):
        units.append(unit)
        if len(units) in {1, 3}:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        upload(self, runner, unit, rows, tensors)

    monkeypatch.setattr(ClientWork, "_upload", exhausted_twice)
    with fake_cuda.recorded():
        found = outcome(gpus)
    assert_same(found, expected)
    everybody, first, *rest = units[:6]
    assert [len(unit) for unit in units[:6]] == [5, 2, 2, 1, 1, 1]
    assert sorted(first + [client for unit in rest[1:] for client in unit]) == sorted(everybody)


@pytest.mark.parametrize("executor", ["batched", "threads"])
def test_a_single_client_that_does_not_fit_is_an_error_with_remedies(executor, gpus, monkeypatch):
    exhausted_above(0, monkeypatch)
    reason = r"cuda:0 has too little memory for client \d alone \(Tried to allocate 20.00 MiB\)"
    with fake_cuda.recorded(), pytest.raises(OutOfMemory, match=f"{reason}.*batch_size.*device=.cpu"):
        outcome(gpus, executor=executor)


def test_exhausted_memory_elsewhere_names_the_stack(gpus, monkeypatch):
    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")

    monkeypatch.setattr("pfl_fast.engine.round.Round.aggregate", exhausted)
    with fake_cuda.recorded(), pytest.raises(OutOfMemory, match=r"Tried to allocate 2.00 GiB\); a smaller stack"):
        outcome(gpus)


@pytest.mark.parametrize("gpus", [1, 2], indirect=True)
def test_stacks_are_as_large_as_memory_allows(gpus, monkeypatch):
    devices = len(gpus.split(","))
    expected = outcome(",".join(["cpu"] * devices))
    running = small.experiment("fedcp", momentum=0.9, keep_momentum=True)
    needed = estimate_device(running.part_table, running.method, running.data, running.settings)
    running.close()
    free = int(needed.total(2) / 0.85) + 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    with fake_cuda.recorded():
        found = outcome(gpus)
        given = outcome(gpus, stack=3)
    assert_same(found, expected)
    assert (found[3], given[3]) == (2, 3)
    assert [text for text in found[2] if text.startswith("Stacks of 2 clients") and "stack=N" in text]
    assert not [text for text in given[2] if "Stacks of" in text]


def test_the_largest_stack_that_fits():
    needed = DeviceEstimate(fixed=100, tensors=10, step=(5, 20), test=1, tested=4, test_copies=2)
    assert needed.total(3) == 100 + 30 + max(5 + 60, 60 + 3)
    assert needed.most_clients(free=10_000, wanted=7) == 7
    assert needed.most_clients(free=int(needed.total(3) / 0.85) + 1, wanted=7) == 3
    assert needed.most_clients(free=1, wanted=7) == 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_estimated(method):
    running = small.experiment(method, momentum=0.9)
    needed = estimate_device(running.part_table, running.method, running.data, running.settings)
    running.close()
    assert needed.step[1] > 0
    assert needed.total(10) > needed.total(5) > 0


def test_cuda_graphs_are_freed_before_the_stack_is_halved():
    attempts, messages, graphs = [], [], [True]
    steps = SimpleNamespace(free=lambda: bool(graphs and graphs.pop()))
    worker = SimpleNamespace(
        device="cuda:0", runner=SimpleNamespace(free_scratch=lambda: None), trainer=SimpleNamespace(steps=steps)
    )

    def work(_, unit):
        attempts.append(list(unit))
        if len(attempts) < 3:
            raise torch.OutOfMemoryError("no memory")
        return [f"row {client}" for client in unit]

    executor = SimpleNamespace(stack=0)
    rows = InHalves(work, executor, {}, messages.append)(worker, [4, 5, 6, 7])
    assert rows == ["row 4", "row 5", "row 6", "row 7"]
    assert attempts == [[4, 5, 6, 7], [4, 5, 6, 7], [4, 5], [6, 7]]
    assert executor.stack == 2
    assert len(messages) == 1
