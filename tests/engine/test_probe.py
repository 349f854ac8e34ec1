"""Models and methods that cannot run in a stack are found before the first round; so are unknown parts in phases."""

import re

import pytest
import torch
from torch import nn

from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import Phase
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.models import Backbone
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x.view(-1, 3, 2))[0][:, -1]


class Branching(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return -y if y.sum() < 0 else y


class Reading(nn.Linear):
    def forward(self, x):
        return super().forward(x) / x.abs().max().item()


class ReadingLoss(FedAvg):
    title = "Reading loss"

    def loss(self, client, batch):
        loss, recorded = super().loss(client, batch)
        return loss * float(loss.detach() > 0), recorded


def backbone(extractor, width=5):
    return Backbone(nn.Sequential(nn.Flatten(), extractor), nn.Linear(width, small.CLASSES), width)


CASES = {
    "LSTM": (FedAvg, lambda: backbone(Recurrent(), 4), r"module extractor\.1\.lstm \(LSTM\)"),
    "branch": (FedAvg, lambda: backbone(Branching(6, 5)), r"module extractor\.1 \(Branching\).*test_probe.py, line \d"),
    "item": (FedAvg, lambda: backbone(Reading(6, 5)), r"module extractor\.1 \(Reading\).*\.item\(\).*test_probe.py"),
}


class BranchingLoss(FedAvg):
    def loss(self, client, batch):
        loss, recorded = super().loss(client, batch)
        return (loss if loss > 0 else -loss), recorded


class NoisyLoss(FedAvg):
    def loss(self, client, batch):
        loss, recorded = super().loss(client, batch)
        return loss + torch.rand(()), recorded


class TensorLoss(FedAvg):
    def loss(self, client, batch):
        return super().loss(client, batch)[0]


MISTAKES = {
    "item": (
        ReadingLoss,
        r"method Reading loss reads the value of a tensor, by .item\(\).*\(test_probe.py, line \d+\)",
    ),
    "branch": (BranchingLoss, r"method BranchingLoss branches on the value of a tensor.*\(test_probe.py, line \d+\)"),
    "noise": (NoisyLoss, r"method NoisyLoss draws noise from torch.*batch.seed.*\(test_probe.py, line \d+\)"),
    "tensor": (TensorLoss, r"method TensorLoss: loss returned Tensor; return the pair \(loss, recorded\)"),
}


@pytest.mark.parametrize("executor", ["batched", "sequential", "threads"])
@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_a_loss_are_refused_by_every_executor(case, executor):
    method, message = MISTAKES[case]
    with pytest.raises(ConfigError, match=message):
        small.experiment(method, executor=executor).run()


@pytest.mark.parametrize("case", CASES)
def test_batched_is_refused_and_names_module_and_line(case):
    method, model, message = CASES[case]
    running = small.experiment(method, model=model(), executor="batched")
    with pytest.raises(ConfigError, match=message) as caught:
        running.run()
    assert 'executor="threads"' in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("executor", ["auto", "sequential", "threads"])
@pytest.mark.parametrize("case", CASES)
def test_other_executors_train_client_by_client_and_say_so(case, executor):
    method, model, message = CASES[case]
    said = []
    with small.trained(method, model=model(), executor=executor, rounds=1, log=said.append) as running:
        assert running.round.executor.name in {"threads", "sequential"}
    (text,) = [text for text in said if text.startswith("Clients are trained one by one: ")]
    assert re.search(message, text)


def test_an_error_of_every_executor_is_raised_by_training():
    class Broken(FedAvg):
        def loss(self, client, batch):
            raise ZeroDivisionError("in the loss")

    running = small.experiment(Broken, executor="batched")
    with pytest.raises(ZeroDivisionError, match="in the loss"):
        running.run()


def test_the_probe_changes_nothing():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    running = small.experiment("fedcp")
    assert running.round.state.clients.touched.sum() == 0
    assert torch.equal(torch.rand(2), expected)
    running.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": ("extractor", "hed")}, r"train of phase 1 \(loss\) .* part 'hed'; the parts are extractor, head"),
        ({"rotation": (("extractor",), ("heads",))}, "rotation of phase 1 .*'heads'.* did you mean 'head'"),
        ({"adam": {"neck": 0.1}}, "adam of phase 1 .*'neck'"),
        ({"proximal": {"head": ("start.head", 1.0)}}, "proximal of phase 1 .*'start'"),
    ],
)
def test_unknown_parts_in_phases_are_refused(fields, message):
    class Misspelt(FedAvg):
        def phases(self, _round):
            return [Phase(**{"train": ("extractor", "head"), "loss": self.loss, "epochs": 1, **fields})]

    with pytest.raises(ConfigError, match=message):
        small.experiment(Misspelt)
