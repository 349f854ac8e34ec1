"""Programs of recorded steps: the same bits as eager steps, and eager steps where there is no program."""

import logging

import pytest
import torch
from torch import nn

from pfl_fast.engine.client_work import NotFinite
from pfl_fast.engine.local import capture, program
from pfl_fast.engine.local.capture import Programs
from pfl_fast.engine.local.recording import NotRecordable, Recording
from pfl_fast.methods import METHODS
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.models import Backbone
from pfl_fast.nn import Linear
from pfl_fast.randomness import torch_seed
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

MANY = {"momentum": 0.9, "weight_decay": 0.01, "join_ratio": 0.6, "local_epochs": 2}
TABLE = torch.ones(5000)
VARIANTS = {
    "sequential": {"executor": "sequential"},
    "sequential, momentum": {"executor": "sequential", **MANY},
    "batched, momentum": {"executor": "batched", **MANY},
}


def trained(method, **values):
    """State and records of a run, and the programs of its steps, None where steps run eagerly."""
    with small.trained(method, log=lambda _: None, **values) as running:
        programs = running.round.executor.workers[0].trainer.steps
        return small.state_of(running), small.untimed_records(running), list(programs._programs.values())


def assert_same_bits(mine, theirs):
    assert mine[0].keys() == theirs[0].keys()
    assert [name for name, value in mine[0].items() if not torch.equal(value, theirs[0][name])] == []
    assert mine[1] == theirs[1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("method", METHODS)
def test_programs_have_the_bits_of_eager_steps(method, variant):
    eager, recorded = (trained(method, capture=capture, **VARIANTS[variant]) for capture in ("off", "auto"))
    assert_same_bits(recorded, eager)
    assert eager[2] == []
    assert recorded[2], "a step is recorded"
    assert None not in recorded[2], "every step has a program"


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
@pytest.mark.parametrize("model", [small.with_batch_norm, small.with_dropout], ids=["batch norm", "dropout"])
def test_models_with_buffers_and_noise(model, executor):
    values = {"model": model(), "executor": executor, "dtype": "float32"}
    eager, recorded = (trained("fedcp", capture=capture, **values) for capture in ("off", "auto"))
    assert_same_bits(recorded, eager)
    assert recorded[2]
    assert None not in recorded[2]


def test_another_learning_rate_is_recorded_but_not_compiled_again():
    values = {"lr_decay": 0.9, "rounds": 4, "sizes": (8, 8)}
    with small.trained("fedavg", log=lambda _: None, **values) as running:
        programs = running.round.executor.workers[0].trainer.steps
        assert len(programs._programs) == 4
        assert len(programs._compiled) == 1
    eager, recorded = (trained("fedavg", capture=capture, **values) for capture in ("off", "auto"))
    assert_same_bits(recorded, eager)


class Anneals(FedAvg):
    """Its loss contains a number that changes in every round, although its phase stays the same."""

    title = "a number of the round"

    def phases(self, round):
        self.tau = 1.0 / round
        return super().phases(round)

    def loss(self, client, batch):
        loss, recorded = super().loss(client, batch)
        return loss * self.tau, recorded


def test_another_number_of_the_method_is_recorded_again():
    eager, recorded = (trained(Anneals, capture=capture, rounds=3, sizes=(8, 8)) for capture in ("off", "auto"))
    assert_same_bits(recorded, eager)
    assert len(recorded[2]) == 3
    assert None not in recorded[2]


@pytest.mark.parametrize("method", ["fedcp", "ditto"])
def test_products_in_bfloat16(method):
    values = {"precision": "bf16", "dtype": "float32"}
    eager, recorded = (trained(method, capture=capture, **values) for capture in ("off", "auto"))
    assert_same_bits(recorded, eager)
    assert None not in recorded[2]


class Reads(nn.Module):
    def forward(self, x):
        return x if x.sum().item() < 1e9 else -x


def test_steps_that_read_values_run_eagerly_and_say_why(caplog):
    with torch_seed(1):
        model = Backbone(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), Reads()), nn.Linear(5, small.CLASSES), 5)
    caplog.set_level(logging.DEBUG, "pfl_fast")
    eager, recorded = (trained("fedavg", capture=capture, model=model) for capture in ("off", "auto"))
    assert_same_bits(recorded, eager)
    assert set(recorded[2]) == {None}
    assert caplog.messages
    reason = "steps run eagerly: aten::_local_scalar_dense depends on values or on torch's random numbers"
    assert set(caplog.messages) == {reason}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * torch.rand_like(x), "rand_like depends on values or on torch's random numbers"),
        (lambda x: x[x > 0], "index.Tensor depends on values"),
        (lambda x: x.unique(), "unique2 depends on values"),
        (lambda x: x * TABLE[:3], r"a tensor \[5000\] that belongs to no part"),
    ],
)
def test_what_is_no_fixed_program_is_refused(function, reason):
    with Recording([("x", x := torch.ones(3))]) as recording:
        result = function(x)
    with pytest.raises(NotRecordable, match=reason):
        program.write_program(recording, ["x"], result, {})


def test_a_program_with_other_results_than_the_eager_step_is_not_used(monkeypatch, caplog):
    def wrong(*arguments):
        found = program.write_program(*arguments)
        found.numbers = [1.5 * number for number in found.numbers]
        return found

    caplog.set_level(logging.DEBUG, "pfl_fast")
    eager = trained("fedavg", capture="off")
    monkeypatch.setattr(capture, "write_program", wrong)
    recorded = trained("fedavg")
    assert_same_bits(recorded, eager)
    assert set(recorded[2]) == {None}
    assert "the recorded step computes another extractor.1.weight than the eager step" in caplog.text


@pytest.mark.parametrize("on_nan", ["stop", "skip", "report"])
def test_losses_that_are_not_finite(on_nan):
    values = {"on_nan": on_nan, "lr": 1e200, "sizes": (16, 16), "rounds": 1}
    if on_nan == "stop":
        messages = []
        for choice in ("off", "auto"):
            with pytest.raises(NotFinite) as error:
                trained("fedavg", capture=choice, **values)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
        return
    eager, recorded = (trained("fedavg", capture=choice, **values) for choice in ("off", "auto"))
    assert small.differences(recorded[0], eager[0], 0) == {}
    assert str(recorded[1]) == str(eager[1])


def test_one_worker_records_a_step():
    programs, key = Programs(), ("a",)
    assert programs.claims(key)
    assert not programs.claims(key)
    assert programs._programs[key] is None


def test_the_source_of_a_program_is_readable():
    weight, x = torch.ones(2, 3), torch.ones(4, 3)
    with Recording([("weight", weight), ("x", x)]) as recording:
        unused = x + 1
        y = (x @ weight.t()).relu()
        weight.add_(y.sum())
    found = program.write_program(recording, ["weight"], y, {})
    assert unused.shape == (4, 3)
    assert found.source.splitlines()[1:] == [
        "    v3 = torch.ops.aten.t(start[0])",
        "    v4 = torch.ops.aten.mm(x, v3)",
        "    v5 = torch.ops.aten.relu(v4)",
        "    v6 = torch.ops.aten.sum(v5)",
        "    torch.ops.aten.add_(t[0], v6)",
        "    return [v5]",
    ]
    assert (found.written, found.replaced) == ({"weight"}, set())


def test_factors_of_linear_layers_are_written_without_a_copy():
    """The first step of a client reads the server's weight and writes the client's."""
    model = Backbone(nn.Sequential(nn.Flatten(), Linear(6, 5)), Linear(5, small.CLASSES), 5)
    recorded = trained("fedavg", model=model)
    assert {"extractor.1.weight", "head.weight"} == recorded[2][0].replaced
    assert_same_bits(recorded, trained("fedavg", model=model, capture="off"))
