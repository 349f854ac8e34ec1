"""What a run will take is foretold by trying a step, and trying leaves no trace."""

import pytest
import torch
from torch import nn

from pfl_fast.engine.allocations import Allocations
from pfl_fast.engine.memory import Trial, resident
from pfl_fast.methods import METHODS
from pfl_fast.models import Backbone
from tests.engine import toys

WIDE = 257


def wide(width=WIDE):
    """So many parameters that everything else is small beside them."""
    return Backbone(nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.ReLU()), nn.Linear(width, toys.CLASSES), width)


def trial_of(experiment):
    return Trial(experiment.part_table, experiment.method, experiment.data, experiment.settings)


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
        assert allocations.now == 400, "a view of it is still there"
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
def test_trying_leaves_initial_values_and_results_as_they_are(method):
    values = {"model": toys.with_batch_norm(), "momentum": 0.5}
    asked = toys.experiment(method, **values)
    before = {name: value.clone() for name, value in asked.part_table.common.items()}
    modules = {name: value.clone() for name, value in asked.part_table.client.state_dict().items()}
    estimate = asked.memory()
    assert asked.memory() is estimate
    asked.run()
    assert all(torch.equal(value, before[name]) for name, value in asked.part_table.common.items())
    assert all(torch.equal(value, modules[name]) for name, value in asked.part_table.client.state_dict().items())
    assert all(not value.any() for name, value in asked.part_table.common.items() if "momentum." in name)
    assert estimate.total == sum(
        [estimate.program, estimate.samples, estimate.client_state, estimate.server, estimate.training]
    )


@pytest.mark.parametrize(("momentum", "made"), [(0.0, False), (0.9, True)])
def test_a_step_takes_gradients_once_and_those_of_linear_layers_only_for_momentum(momentum, made):
    experiment = toys.experiment("fedavg", model=wide(), momentum=momentum, dtype="float32")
    parameters = [e.value for e in experiment.part_table.specs if e.parameter]
    gradients = sum(p.nbytes for p in parameters if made or p.dim() != 2)
    activations = experiment.settings.batch_size * WIDE * 4
    assert gradients + activations <= trial_of(experiment).step_bytes() <= gradients + 6 * activations


def test_tests_grow_with_their_samples_up_to_a_batch():
    taken = {tests: trial_of(toys.experiment("fedavg", model=wide(), tests=tests)).test_bytes() for tests in (4, 8)}
    assert taken[8] == 2 * taken[4]
    assert taken[4] >= 4 * WIDE * 8


def test_the_more_train_at_once_the_more_is_needed():
    def training(**values):
        experiment = toys.experiment("fedpick", model=wide(), **values)
        found = experiment.memory()
        experiment.close()
        return found.training

    one = training()
    assert training(executor="threads", workers=3) == 3 * one
    assert training(executor="batched") == len(toys.RAGGED) * one
    assert training(executor="batched", stack=2) == 2 * one


def test_workers_hold_no_initial_values_of_their_own():
    experiment = toys.experiment("fedpick", model=wide(), executor="threads", workers=2)
    initial = {name: p.data_ptr() for name, p in experiment.part_table.client.named_parameters()}
    for worker in experiment.round.executor.workers:
        for trainer in (worker.single, worker.stacked):
            assert {name: p.data_ptr() for name, p in trainer.client.named_parameters()} == initial
    for entry in experiment.part_table.of_model:
        if entry.parameter:
            assert entry.value.data_ptr() == initial[entry.key]
    experiment.close()


def test_estimates_of_state_and_server():
    experiment = toys.experiment("fedpick", model=wide(), momentum=0.5, dtype="float64", pfsm=False)
    estimate = experiment.memory()
    model = sum(p.nbytes for p in wide().double().parameters())
    assert estimate.client_state == 0, "everybody receives everything"
    assert estimate.server == 2 * model + len(toys.RAGGED) * model
    assert toys.experiment("fedpick", model=wide(), state="disk").memory().client_state == 0
    selector = 2 * WIDE * (WIDE // 2) + WIDE + WIDE // 2
    heads = 2 * (WIDE + 1) * toys.CLASSES
    assert toys.experiment("fedpick", model=wide()).memory().client_state == len(toys.RAGGED) * 8 * (selector + heads)
    assert 0 < estimate.program <= 2 * resident()
