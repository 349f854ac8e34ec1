"""The yardstick, a second implementation of every method written from the papers, equals the library."""

import pytest
import torch

from bench.end_to_end.to_yardstick import renamed, to_yardstick
from bench.yardstick import CLIENTS
from pfl_fast.ops import reference
from pfl_fast.randomness import key
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")
EPOCHS = {"fedafk": 2}  # one epoch for the extractors, one for the head


class LibraryBatches:
    """One client's batches and noise in the library, for successive epochs."""

    def __init__(self, experiment, client):
        self.data, self.seed, self.client = experiment.data, experiment.settings.seed, client
        self.per_round = EPOCHS.get(experiment.method_name, 1)
        self.epochs = self.step = 0

    def __iter__(self):
        self.round, epoch = self.epochs // self.per_round + 1, self.epochs % self.per_round
        self.epochs += 1
        for step, (x, y, _) in enumerate(self.data.batches(self.client, self.round, epoch)):
            self.step = step
            yield x, y

    def uniform(self, z):
        noise = key(self.seed, "noise", self.client, self.round, self.step)
        return reference.philox_uniform(torch.tensor(noise), z.shape).to(z.dtype)


def yardstick_with_same_batches(experiment):
    batches = [LibraryBatches(experiment, client) for client in range(experiment.data.clients)]
    server = to_yardstick(experiment, batches)
    for client, own in zip(server.clients, batches, strict=True):
        client.uniform = own.uniform
    return server


def assert_equal(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("values", [{}, {"momentum": 0.9, "lr": 0.05}], ids=["plain", "momentum"])
@pytest.mark.parametrize("method", CLIENTS)
def test_two_rounds_equal_the_library(method, values):
    values = {"momentum": 0.0, "eval_at": "after_agg", **values}
    server = yardstick_with_same_batches(small.experiment(method, **values))
    before = {name: value.clone() for name, value in server.clients[0].state_dict().items()}
    rounds = [server.round(), server.round()]
    with small.trained(method, **values) as running:
        for number, client in enumerate(server.clients):
            theirs = dict(client.state_dict())
            assert_equal(renamed(running.round.client_tensors(number), theirs), theirs)
        for mine, record in zip(rounds, running.records, strict=True):
            assert mine["accuracy"] == record["test_accuracy_after_agg"]
            assert mine["auc"] == pytest.approx(record["test_auc_after_agg"])
    moved = [name for name, value in server.clients[0].state_dict().items() if not torch.equal(value, before[name])]
    assert any(name.startswith("extractor.") for name in moved)
    assert any(name.startswith("head.") for name in moved)


def test_the_cnn_of_plain_layers_equals_the_librarys():
    sizes, tests = (6, 3), 2
    images = small.images(sum(sizes) + tests * len(sizes), shape=(16, 16, 1))
    values = {"sizes": sizes, "tests": tests, "dataset": images, "model": "cnn", "rounds": 1, "eval_at": "after_agg"}
    server = yardstick_with_same_batches(small.experiment("fedavg", **values))
    assert not any(type(layer).__module__.startswith("pfl_fast") for layer in server.clients[0].modules())
    server.round()
    with small.trained("fedavg", **values) as running:
        theirs = dict(server.clients[1].state_dict())
        assert_equal(renamed(running.round.client_tensors(1), theirs), theirs)


def test_options_and_learning_rate_are_passed_on():
    server = yardstick_with_same_batches(small.experiment("fedcp", lam=7.0, lr=0.02))
    assert (server.clients[3].lam, server.lr) == (7.0, 0.02)


def test_loaders_shuffle_all_samples():
    experiment = small.experiment("fedavg")
    server = to_yardstick(experiment)
    epochs = [torch.cat([x for x, _ in server.train_batches[0]]) for _ in range(2)]
    mine, _ = experiment.data.take(experiment.data.indices("train", 0))
    assert not torch.equal(*epochs)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == sorted(mine.tolist())


def test_seconds_by_part_of_a_round():
    server = to_yardstick(small.experiment("fedper"))
    record = server.round()
    assert list(record["seconds_by_part"]) == ["data", "local", "aggregate", "distribute", "test_aggregated"]
    assert all(seconds >= 0 for seconds in record["seconds_by_part"].values())
    assert server.train_batches[0].seconds == 0
