"""What a client reads where it is until its first step, and that nobody else notices."""

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from pfl_fast.engine.local.single import SingleTrainer
from pfl_fast.methods import METHODS
from tests.engine import toys

pytestmark = pytest.mark.usefixtures("one_core")


def outcome(method, values):
    with toys.ran(method, **values) as running:
        return toys.state_of(running), toys.numbers_of(running)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", [{}, {"weight_decay": 0.1, "local_epochs": 2, "executor": "threads", "workers": 2}])
def test_borrowing_changes_no_bit(monkeypatch, method, values):
    borrowing = outcome(method, values)
    monkeypatch.setattr(SingleTrainer, "borrowed", lambda *_: {})
    copying = outcome(method, values)
    assert toys.differences(borrowing[0], copying[0], 0.0) == {}
    toys.assert_same_records(borrowing[1], copying[1], 0.0)


def train(running, client, phases=None):
    """What training one client leaves of the server's tensors and its state, and what it makes of the client."""
    server, worker = running.server, running.server.executor.workers[0]
    view = server.state.view(client, server.tensors)
    before = {name: tensor.clone() for name, tensor in view.items()}
    (trained,) = worker.train([client], [view], phases or server.method.phases(1), server.step_settings(1), stack=False)
    assert all(torch.equal(view[name], before[name]) for name in view)
    return view, trained.tensors


def borrowed_by(running):
    server = running.server
    return server.executor.workers[0].single.borrowed(server.method.phases(1), server.step_settings(1))


def same_memory(a, b):
    return a.data_ptr() == b.data_ptr()


def test_what_is_trained_moves_and_what_is_not_stays():
    with closing(toys.experiment("fedcp")) as running:
        view, tensors = train(running, 0)
        trained = {part for phase in running.server.method.phases(1) for part in phase.train}
        frozen = {e.key for e in running.part_table.specs if e.parameter and e.part not in trained}
        borrowed = borrowed_by(running)
        assert {"extractor.1.weight", "head.weight"} < {name for name, moves in borrowed.items() if moves}
        assert "extractor.1.bias" not in borrowed
        assert frozen == {name for name, moves in borrowed.items() if not moves} != set()
        assert all(same_memory(tensors[name], view[name]) == (not moves) for name, moves in borrowed.items())
        scratch = running.server.executor.workers[0].scratch
        assert not frozen & scratch.keys()


@pytest.mark.parametrize(("method", "values"), [("fedavg", {"momentum": 0.9}), ("ditto", {}), ("scaffold", {})])
def test_nothing_is_borrowed_where_something_else_is_done_with_a_gradient(method, values):
    with closing(toys.experiment(method, **values)) as running:
        assert borrowed_by(running) == {}
        train(running, 1)


def test_a_borrowed_weight_that_has_a_tensor_for_its_gradient_is_copied_first():
    with closing(toys.experiment("fedavg")) as running:
        (phase,) = running.server.method.phases(1)

        def loss(client, batch):
            value, recorded = phase.loss(client, batch)
            return value + client.head.weight.square().sum(), recorded

        view, tensors = train(running, 0, [replace(phase, loss=loss)])
        assert not torch.equal(tensors["head.weight"], view["head.weight"])


def test_what_has_no_gradient_stays_where_it_is():
    with closing(toys.experiment("fedavg")) as running:
        (phase,) = running.server.method.phases(1)
        view, tensors = train(
            running, 0, [replace(phase, loss=lambda client, _: (client.head.bias.square().sum(), {}))]
        )
        assert same_memory(tensors["head.weight"], view["head.weight"])
        assert not torch.equal(tensors["head.bias"], view["head.bias"])


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbabu", "fedcp", "fedpick", "local"])
def test_other_clients_may_end_while_one_computes_its_gradients(method):
    with closing(toys.experiment(method, rounds=1)) as running:
        running.run()  # from here on every client has a row
        server = running.server

        def interrupted(phase):
            def loss(client, batch):
                result = phase.loss(client, batch)
                server.state.write(1, {name: block[1].clone() for name, block in server.state.blocks.items()})
                return result

            return replace(phase, loss=loss)

        train(running, 0, [interrupted(phase) for phase in server.method.phases(1)])
