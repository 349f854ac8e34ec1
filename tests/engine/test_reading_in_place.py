"""Tensors that clients read in place until their first update."""

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from pfl_fast.engine.local.single import SingleRunner
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


def outcome(method, values):
    with small.trained(method, **values) as running:
        return small.state_of(running), small.untimed_records(running)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [{}, {"weight_decay": 0.1, "local_epochs": 2, "executor": "threads", "workers": 2}])
def test_reading_in_place_changes_no_bit(monkeypatch, method, values):
    in_place = outcome(method, values)
    monkeypatch.setattr(SingleRunner, "read_only_names", lambda *_: {})
    copying = outcome(method, values)
    assert small.differences(in_place[0], copying[0], 0.0) == {}
    small.assert_same_records(in_place[1], copying[1], 0.0)


def train(running, client, phases=None):
    """Trains one client and returns its tensors before and after. Training must not change the tensors before."""
    view = running.round.state.clients.view(client, running.round.state.server)
    before = {name: tensor.clone() for name, tensor in view.items()}
    tensors = small.train_locally(running, client, view, phases)
    assert all(torch.equal(view[name], before[name]) for name in view)
    return view, tensors


def read_only_names(running):
    rounds = running.round
    return rounds.executor.workers[0].single.read_only_names(rounds.method.phases(1), rounds.step_settings(1))


def same_memory(a, b):
    return a.data_ptr() == b.data_ptr()


def test_trained_weights_move_to_write_buffers_and_frozen_ones_stay():
    with closing(small.experiment("fedcp")) as running:
        view, tensors = train(running, 0)
        trained = {part for phase in running.round.method.phases(1) for part in phase.train}
        frozen = {e.key for e in running.part_table.specs if e.parameter and e.part not in trained}
        read_only = read_only_names(running)
        assert {"extractor.1.weight", "head.weight"} < {name for name, updated in read_only.items() if updated}
        assert "extractor.1.bias" not in read_only
        assert frozen == {name for name, updated in read_only.items() if not updated} != set()
        assert all(same_memory(tensors[name], view[name]) == (not updated) for name, updated in read_only.items())
        scratch = running.round.executor.workers[0].single._scratch
        assert not frozen & scratch.keys()


@pytest.mark.parametrize(("method", "values"), [("fedavg", {"momentum": 0.9}), ("ditto", {}), ("scaffold", {})])
def test_nothing_is_read_in_place_if_the_step_needs_dense_gradients(method, values):
    with closing(small.experiment(method, **values)) as running:
        assert read_only_names(running) == {}
        train(running, 1)


def test_a_weight_with_a_dense_gradient_is_copied_before_its_update():
    with closing(small.experiment("fedavg")) as running:
        (phase,) = running.round.method.phases(1)

        def loss(client, batch):
            value, recorded = phase.loss(client, batch)
            return value + client.head.weight.square().sum(), recorded

        view, tensors = train(running, 0, [replace(phase, loss=loss)])
        assert not torch.equal(tensors["head.weight"], view["head.weight"])


def test_a_weight_without_gradient_stays_in_place():
    with closing(small.experiment("fedavg")) as running:
        (phase,) = running.round.method.phases(1)
        view, tensors = train(
            running, 0, [replace(phase, loss=lambda client, _: (client.head.bias.square().sum(), {}))]
        )
        assert same_memory(tensors["head.weight"], view["head.weight"])
        assert not torch.equal(tensors["head.bias"], view["head.bias"])


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbabu", "fedcp", "fedpick", "local"])
def test_other_clients_may_store_their_state_between_forward_and_backward(method):
    with closing(small.experiment(method, rounds=1)) as running:
        running.run()  # every client has a row now
        clients = running.round.state.clients

        def interrupted(phase):
            def loss(client, batch):
                result = phase.loss(client, batch)
                clients.write(1, {name: block[1].clone() for name, block in clients.blocks.items()})
                return result

            return replace(phase, loss=loss)

        train(running, 0, [interrupted(phase) for phase in running.method.phases(1)])
