"""The memory estimate of a run uses the meta device and does not change the run."""

import resource

import pytest
import torch
from torch import nn

from pfl_fast.engine import memory
from pfl_fast.engine.allocations import Allocations
from pfl_fast.engine.local.optimizer import StepSettings
from pfl_fast.engine.local.trainer import Trainer
from pfl_fast.engine.memory import MetaClient, available, resident
from pfl_fast.engine.out_of_memory import OutOfMemory
from pfl_fast.methods import METHODS
from pfl_fast.models import Backbone
from tests.engine import small_experiments as small

WIDE = 257


def wide(width=WIDE):
    """Model whose parameters take most of the memory."""
    return Backbone(nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.ReLU()), nn.Linear(width, small.CLASSES), width)


def meta_client(experiment):
    return MetaClient(experiment.part_table, experiment.method, experiment.data, experiment.settings)


def measured_bytes(experiment):
    """Peak memory that local training of the largest client allocates, without the client's tensors."""
    method, s = experiment.method, experiment.settings
    worker, client = experiment.round.executor.workers[0], int(experiment.data.train_sizes.argmax())
    settings, most = StepSettings(s.lr, s.momentum, s.weight_decay, s.seed, round=1), 0
    for phases in (method.phases(1), method.phases(2), method.final_phases(), method.before_test(2, "after_agg")):
        tensors = {e.key: e.value.clone() for e in experiment.part_table.specs}
        allocations = Allocations()
        with allocations:
            Trainer(worker.single, lambda: False).train([client], tensors, phases, settings)
        most = max(most, allocations.most)
    return most


MODELS = {
    "plain": (small.plain, None),
    "batch norm": (small.with_batch_norm, None),
    "dropout": (small.with_dropout, None),
    "convolution": (small.convolutional, (4, 4, 2)),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_the_estimate_of_a_step_is_within_a_factor_of_two(method, model):
    make, shape = MODELS[model]
    dataset = small.images(sum(small.RAGGED) + 3 * len(small.RAGGED), shape) if shape else None
    experiment = small.experiment(method, model=make(), dataset=dataset, dtype="float32")
    assert 0.5 <= meta_client(experiment).step_bytes() / measured_bytes(experiment) <= 2
    experiment.close()


class ReadsValues(nn.Module):
    """Module that cannot run on the meta device."""

    def forward(self, x):
        return x if x.sum().item() < 1e9 else -x


def test_a_model_that_reads_values_is_counted_without_activations():
    model = Backbone(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), ReadsValues()), nn.Linear(5, small.CLASSES), 5)
    experiment = small.experiment("fedavg", model=model)
    assert meta_client(experiment).step_bytes() >= sum(p.nbytes for p in model.double().parameters())
    assert meta_client(experiment).test_bytes() > 0
    experiment.run()


def test_the_estimate_reads_no_data(monkeypatch):
    experiment = small.experiment("fedcp")
    counted = meta_client(experiment)
    monkeypatch.setattr(experiment.data, "batches", None)
    monkeypatch.setattr(torch.Tensor, "item", None)
    assert counted.step_bytes() > 0


def system(root, meminfo, cgroup, **files):
    """Creates the files in which Linux reports memory and its limits."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(meminfo)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("DOT", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


MEMINFO = "MemTotal:  2000 kB\nMemAvailable:    1000 kB\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("", {}, 1000 * 1024),
        ("0::/\n", {"memoryDOTmax": "max\n", "memoryDOTcurrent": "5\n"}, 1000 * 1024),
        ("0::/\n", {"memoryDOTmax": "5000\n", "memoryDOTcurrent": "2000\n"}, 3000),
        (
            "0::/\n",
            {"memoryDOTmax": "5000", "memoryDOTcurrent": "4000", "memoryDOTstat": "anon 7\ninactive_file 500\n"},
            1500,
        ),
        ("0::/a/b\n", {"a__memoryDOTmax": "900", "a__memoryDOTcurrent": "100"}, 800),
        ("0::/a/b\n", {"memoryDOTmax": "50", "memoryDOTcurrent": "90"}, 0),
        (
            "5:cpu:/x\n4:memory:/docker/1\n",
            {"memory__memoryDOTlimit_in_bytes": "7000", "memory__memoryDOTusage_in_bytes": "1000"},
            6000,
        ),
        (
            "4:memory:/j\n0::/\n",
            {
                "memory__j__memoryDOTlimit_in_bytes": "7000",
                "memory__j__memoryDOTusage_in_bytes": "6000",
                "memory__j__memoryDOTstat": "total_inactive_file 11",
                "memory__memoryDOTlimit_in_bytes": str(2**63 - 4096),
                "memory__memoryDOTusage_in_bytes": "1",
            },
            1011,
        ),
        ("garbage\n:\n", {"memoryDOTmax": "x", "memoryDOTcurrent": ""}, 1000 * 1024),
    ],
)
def test_free_memory_respects_the_limits_of_the_container(tmp_path, cgroup, files, expected):
    assert available(system(tmp_path, MEMINFO, cgroup, **files)) == expected


def test_free_memory_is_unknown_without_system_files(tmp_path):
    assert available(tmp_path) is None


def test_allocations_are_counted_while_they_live():
    old = torch.zeros(100)
    allocations = Allocations()
    with allocations:
        view = old.view(10, 10).t()
        old.add_(1)
        assert allocations.now == 0
        new = old + 1
        again = new[3:]
        assert allocations.now == 400
        del new
        assert allocations.now == 400, "a view still exists"
        del again
        assert allocations.now == 0
        kept = torch.empty(0)
    assert allocations.most == 400
    assert view.shape == (10, 10)
    assert len(kept) == 0


def test_gradients_and_saved_activations_are_counted():
    weight, x = torch.randn(50, 50, requires_grad=True), torch.randn(10, 50)
    allocations = Allocations()
    with allocations:
        y = torch.tanh(x @ weight)  # the product is freed, the result is kept for the backward
        assert allocations.now == y.nbytes
        (gradient,) = torch.autograd.grad(y.sum(), weight)
    assert allocations.most >= y.nbytes + gradient.nbytes


@pytest.mark.parametrize("method", METHODS)
def test_estimating_leaves_initial_values_and_results_unchanged(method):
    values = {"model": small.with_batch_norm(), "momentum": 0.5}
    estimated = small.experiment(method, **values)
    before = {name: value.clone() for name, value in estimated.part_table.common.items()}
    modules = {name: value.clone() for name, value in estimated.part_table.client.state_dict().items()}
    estimate = estimated.memory()
    assert estimated.memory() is estimate
    estimated.run()
    assert all(torch.equal(value, before[name]) for name, value in estimated.part_table.common.items())
    assert all(torch.equal(value, modules[name]) for name, value in estimated.part_table.client.state_dict().items())
    assert all(not value.any() for name, value in estimated.part_table.common.items() if "momentum." in name)
    assert estimate.total == sum(
        [estimate.program, estimate.samples, estimate.client_state, estimate.server, estimate.training]
    )


@pytest.mark.parametrize(("momentum", "dense"), [(0.0, False), (0.9, True)])
def test_a_step_holds_dense_gradients_of_linear_layers_only_with_momentum(momentum, dense):
    experiment = small.experiment("fedavg", model=wide(), momentum=momentum, dtype="float32")
    parameters = [e.value for e in experiment.part_table.specs if e.parameter]
    gradients = sum(p.nbytes for p in parameters if dense or p.dim() != 2)
    activations = experiment.settings.batch_size * WIDE * 4
    assert gradients + activations <= meta_client(experiment).step_bytes() <= gradients + 6 * activations


def test_the_memory_of_tests_grows_with_samples_up_to_a_batch():
    needed = {
        tests: meta_client(small.experiment("fedavg", model=wide(), tests=tests)).test_bytes() for tests in (4, 8)
    }
    assert needed[8] == 2 * needed[4]
    assert needed[4] >= 4 * WIDE * 8


def test_training_memory_grows_with_the_clients_that_train_at_once():
    def training(**values):
        experiment = small.experiment("fedpick", model=wide(), **values)
        found = experiment.memory()
        experiment.close()
        return found.training

    one = training()
    assert training(executor="threads", workers=3) == 3 * one
    assert training(executor="batched") == len(small.RAGGED) * one
    assert training(executor="batched", stack=2) == 2 * one


def test_workers_share_the_initial_values():
    experiment = small.experiment("fedpick", model=wide(), executor="threads", workers=2)
    initial = {name: p.data_ptr() for name, p in experiment.part_table.client.named_parameters()}
    for worker in experiment.round.executor.workers:
        for runner in (worker.single, worker.runner):
            assert {name: p.data_ptr() for name, p in runner.client.named_parameters()} == initial
    for spec in experiment.part_table.model_specs:
        if spec.parameter:
            assert spec.value.data_ptr() == initial[spec.key]
    experiment.close()


def test_estimates_of_state_and_server():
    experiment = small.experiment("fedpick", model=wide(), momentum=0.5, dtype="float64", pfsm=False)
    estimate = experiment.memory()
    model = sum(p.nbytes for p in wide().double().parameters())
    assert estimate.client_state == 0, "all clients receive all tensors"
    assert estimate.server == 2 * model + len(small.RAGGED) * model
    assert small.experiment("fedpick", model=wide(), state="disk").memory().client_state == 0
    selector = 2 * WIDE * (WIDE // 2) + WIDE + WIDE // 2
    heads = 2 * (WIDE + 1) * small.CLASSES
    assert small.experiment("fedpick", model=wide()).memory().client_state == len(small.RAGGED) * 8 * (selector + heads)
    assert 0 < estimate.program <= 2 * resident()


def test_too_many_clients_are_refused_before_their_state_is_allocated(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 100_000)
    monkeypatch.setattr("pfl_fast.experiment.ClientState", None)
    experiment = small.experiment("ditto", model=wide(4000))
    with pytest.raises(memory.TooLarge, match=r"MiB for the state of 5 clients, but only 97\.7 KiB(.|\n)*state=.disk"):
        experiment.run()


def test_exhausted_main_memory_is_explained(monkeypatch):
    experiment = small.experiment("fedavg")

    def fails(*_):
        torch.empty(1 << 50)

    monkeypatch.setattr(experiment.round, "aggregate", fails)
    with pytest.raises(OutOfMemory, match=r"main memory(.|\n)*is exhausted(.|\n)*--workers"):
        experiment.run()


@pytest.mark.parametrize(("limit", "pages"), [(resource.RLIMIT_AS, 30), (resource.RLIMIT_DATA, 20)])
def test_limits_of_the_process_bound_the_free_memory(tmp_path, monkeypatch, limit, pages):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/statm").write_text("30 10 5 1 0 20 0\n")
    page, none = resource.getpagesize(), resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100 * page if which == limit else none, none))
    assert available(tmp_path) == (100 - pages) * page
