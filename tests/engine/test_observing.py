"""Listeners that receive clients' tensors after local training, and seconds of clients."""

from time import sleep

import pytest
import torch

from pfl_fast.engine.results.listeners import Listener
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small
from tests.engine.test_run_folder import rows_of

pytestmark = pytest.mark.usefixtures("one_core")
FULL = {"executor": "sequential"}, {"executor": "threads", "workers": 2}, {"executor": "batched"}


class Trained(Listener):
    """Keeps copies of all tensors and uploads, by round and client."""

    def __init__(self):
        self.tensors, self.uploads = {}, {}

    def client_trained(self, round, client, tensors, upload):
        assert (round, client) not in self.tensors
        self.tensors[round, client] = {name: t.clone() for name, t in tensors.items()}
        self.uploads[round, client] = {name: t.clone() for name, t in upload.items()}


def observed(method, **values):
    running, trained = small.experiment(method, **values), Trained()
    running.listeners.append(trained)
    running.run()
    state = small.state_of(running)
    running.close()
    return trained, state, running


@pytest.mark.parametrize("executor", [*FULL, {"executor": "batched", "stack": 2}])
@pytest.mark.parametrize("method", ["fedavg", "fedcp", "fedper", "local"])
def test_uploads_average_to_the_servers_tensors(method, executor):
    trained, state, running = observed(method, rounds=1, tests=3, **executor)
    assert sorted(trained.uploads) == [(1, client) for client in range(5)]
    server = {name.removeprefix("server "): t for name, t in state.items() if name.startswith("server ")}
    sizes = torch.tensor(running.data.train_sizes, dtype=torch.float64)
    for name, value in server.items():
        sent = torch.stack([trained.uploads[1, client][name] for client in range(5)])
        mean = (sent * (sizes / sizes.sum()).view(-1, *[1] * value.dim())).sum(0)
        torch.testing.assert_close(mean, value, rtol=1e-12, atol=1e-12)
    assert {name for upload in trained.uploads.values() for name in upload} == server.keys()
    personal = {"local": "extractor.1.weight", "fedper": "head.weight"}.get(method)
    for client in range(5) if personal else ():
        assert torch.equal(trained.tensors[1, client][personal], state[f"client {client} {personal}"])


def test_the_tensors_are_those_after_local_training_of_each_round():
    trained, _, running = observed("fedavg", join_ratio=0.6, client_dropout=0.4)
    assert {number for number, _ in trained.tensors} == {1, 2}
    assert len(trained.tensors) == 2 * 3
    assert sorted(bool(upload) for upload in trained.uploads.values()) == [False, False, True, True, True, True]
    again = small.experiment("fedavg", join_ratio=0.6, client_dropout=0.4)
    (client,) = [client for number, client in trained.tensors if number == 1][:1]
    expected = small.train_locally(again, client, again.round.state.clients.view(client, again.round.state.server))
    assert all(torch.equal(expected[name], value) for name, value in trained.tensors[1, client].items())
    assert running.part_table.common.keys() == expected.keys()


def test_clients_in_the_final_fine_tune_upload_nothing():
    trained, state, _ = observed("fedavg", finetune_epochs=1, rounds=1)
    assert all(not trained.uploads[2, client] for client in range(5))
    for client in range(5):
        assert torch.equal(trained.tensors[2, client]["head.weight"], state[f"client {client} head.weight"])


def test_nothing_is_called_without_a_listener_that_asks():
    running = small.experiment("fedavg")
    running.listeners.append(Listener())
    assert running._observer() is None
    running.close()


def slow_metric(*_):
    sleep(0.05)
    return 1.0


class Slow(METHODS["fedavg"]):
    """Each step takes at least 10 ms."""

    def loss(self, client, batch):
        sleep(0.01)
        return super().loss(client, batch)


@pytest.mark.parametrize("executor", FULL[:2])
def test_clients_csv_has_the_seconds_of_local_training_without_tests(tmp_path, executor):
    """Every client is tested for at least 0.1 s in a round, and its steps take at least 10 ms each."""
    metrics = "tests.engine.test_observing:slow_metric"
    values = {"metrics": metrics, "rounds": 2, "capture": "off", **executor}  # programs do not sleep
    with small.trained(Slow, out=tmp_path / "run", **values) as running:
        steps = [running.data.steps(client) for client in range(5)]
    rows = [row for row in rows_of(tmp_path / "run") if row["round"] == "2"]
    assert len(rows) == 5
    for row, count in zip(rows, steps, strict=True):
        assert float(row["seconds"]) >= 0.01 * count


def test_seconds_of_tests_are_not_those_of_training(tmp_path):
    metrics = "tests.engine.test_observing:slow_metric"
    with small.trained("fedavg", metrics=metrics, out=tmp_path / "run", rounds=2) as running:
        tests = running.records[-1]["seconds_by_part"]["test_local"]
    seconds = [float(row["seconds"]) for row in rows_of(tmp_path / "run") if row["round"] == "2"]
    assert tests >= 5 * 0.05
    assert 0 < sum(seconds) < tests
