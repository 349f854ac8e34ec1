from copy import deepcopy

import pytest
import torch
from torch import nn

from pfl_fast.data.synthetic import synthetic
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from pfl_fast.methods import METHODS
from pfl_fast.methods.base import Batch
from pfl_fast.models import Backbone
from pfl_fast.randomness import torch_seed
from tests.engine import small_experiments as small
from tests.engine.test_resume import same
from tests.methods.compare import COMMON, assert_equals_naive
from tests.methods.naive_fedpick import Federation

BN = small.with_batch_norm()
SWITCHES = {
    "batch norm, two epochs, momentum": {"model": BN, "local_epochs": 2, "momentum": 0.5},
    "the digits' values": {"tau": 10, "lam_lce": 10, "lam_dis": 10, "lr": 0.01},
    "no lce": {"lam_lce": 0},
    "no ent": {"lam_ent": 0},
    "much ent": {"lam_ent": 1},
    "no dis": {"lam_dis": 0},
    "soft": {"mask": "soft", "tau": 0.5},
    "threshold": {"threshold": 0.7, "tau": 2},
    "no pfsm": {"pfsm": False, "model": BN},
    "pfsm shared": {"share_pfsm": True, "model": BN, "join_ratio": 0.6},
    "probabilities": {"ensemble": "prob"},
    "global": {"ensemble": "global"},
    "personal": {"ensemble": "personal"},
    "teachers detached": {"dis_detach": True, "lam_dis": 2},
    "heads from the global one": {"init_heads_from_global": True},
}


def deep_head():
    """Returns a model whose head has BatchNorm, as in digits-cnn."""
    model = small.plain()
    with torch_seed(5):
        head = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, small.CLASSES))
    return Backbone(model.extractor, head, 5)


def trained(**values):
    with small.trained("fedpick", **values) as running:
        return small.state_of(running), small.untimed_records(running)


def of(state, part):
    return {name: value for name, value in state.items() if f" {part}." in name and "momentum" not in name}


@pytest.mark.parametrize("case", COMMON)
def test_two_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedpick", COMMON[case], Federation)


@pytest.mark.parametrize("case", SWITCHES)
def test_two_rounds_equal_the_naive_implementation_under_every_switch(case):
    assert_equals_naive("fedpick", SWITCHES[case], Federation)


def test_heads_with_batch_norm():
    assert_equals_naive("fedpick", {"model": deep_head(), "local_epochs": 2, "momentum": 0.5}, Federation)


def test_the_selection_ratio_is_the_share_of_selected_features():
    running, expected = assert_equals_naive("fedpick", {"local_epochs": 2, "threshold": 0.6}, Federation)
    ratios = [pair for client in expected.clients for pair in client.ratios]
    recorded = sum(r["selection_ratio"] * r["samples"] for r in running.records)
    assert recorded == pytest.approx(sum(n * ratio for n, ratio in ratios))
    assert all(0 < r["selection_ratio"] < 1 for r in running.records)


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
def test_without_pfsm_it_is_fedbn_to_the_bit(executor):
    values = {"model": BN, "join_ratio": 0.6, "momentum": 0.5, "local_epochs": 2, "executor": executor, "workers": 2}
    with small.trained("fedpick", pfsm=False, **values) as mine, small.trained("fedbn", **values) as fedbn:
        state, expected = small.state_of(mine), small.state_of(fedbn)
        assert small.untimed_records(mine) == small.untimed_records(fedbn)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_with_zero_weights_extractor_and_head_equal_fedbn():
    state, _ = trained(model=BN, lam_lce=0, lam_ent=0, lam_dis=0)
    with small.trained("fedbn", model=BN) as fedbn:
        expected = small.state_of(fedbn)
    assert small.differences({name: state[name] for name in expected}, expected, 1e-12) == {}


@pytest.mark.parametrize(
    ("weights", "part"),
    [({"lam_ent": 0}, "irrelevant_head"), ({"lam_lce": 0, "lam_dis": 0}, "relevant_head")],
)
def test_a_head_without_a_loss_does_not_change(weights, part):
    before = small.experiment("fedpick").part_table.common
    for values, stays in ((weights, True), ({}, False)):
        for name, value in of(trained(**values)[0], part).items():
            assert torch.equal(value, before[name.split(" ")[-1]]) == stays


def test_ensembles_differ_only_in_predictions():
    found, predictions = {}, {}
    for ensemble in ("logits", "prob", "global", "personal"):
        with small.trained("fedpick", ensemble=ensemble) as running:
            x, _ = running.data.take(running.data.union("test"))
            found[ensemble], predictions[ensemble] = small.state_of(running), running.client(0)(x)
    assert all(same(found["logits"], other) for other in found.values())
    assert torch.equal(predictions["logits"], predictions["global"] + predictions["personal"])
    mean = (predictions["global"].softmax(1) + predictions["personal"].softmax(1)) / 2
    torch.testing.assert_close(predictions["prob"].softmax(1), mean)
    assert not torch.equal(predictions["global"], predictions["personal"])


def test_the_temperature_matters_only_in_training():
    cold, hot = (small.experiment("fedpick", tau=tau) for tau in (0.1, 50))
    x, _ = cold.data.take(cold.data.union("test"))
    assert torch.equal(cold.client(0)(x), hot.client(0)(x))
    assert torch.equal(cold.client(0)(x), cold.client(0)(x))
    assert small.differences(trained(tau=0.1)[0], trained(tau=50)[0], 1e-6)


def test_the_pfsm_is_uploaded_only_with_share_pfsm():
    alone, together = trained()[0], trained(share_pfsm=True)[0]
    for part in ("selector", "relevant_head", "irrelevant_head"):
        assert not any(name.startswith("server") for name in of(alone, part))
        for name, value in of(together, part).items():
            assert torch.equal(value, together["server " + name.split(" ")[-1]])
        mine = [value for name, value in of(alone, part).items() if name.endswith("weight")]
        assert not any(torch.equal(a, b) for i, a in enumerate(mine) for b in mine[:i] if a.shape == b.shape)


def test_detached_teachers_change_gradients_not_losses():
    one_step = {"sizes": (4, 3), "rounds": 1}
    (state, record), (other, other_record) = (trained(dis_detach=detach, **one_step) for detach in (False, True))
    assert record[0]["train_loss"] == pytest.approx(other_record[0]["train_loss"], rel=1e-12)
    assert small.differences(state, other, 1e-6)
    without = [trained(dis_detach=detach, lam_dis=0)[0] for detach in (False, True)]
    assert small.differences(*without, 1e-12) == {}


def test_heads_are_initialized_independently_by_default():
    heads = ("head", "relevant_head", "irrelevant_head")
    for values, equal in (({}, False), ({"init_heads_from_global": True}, True)):
        client = small.experiment("fedpick", model=deep_head(), **values).part_table.client
        first, second, third = (client.get_submodule(name)[0].weight for name in heads)
        assert torch.equal(first, second) == torch.equal(first, third) == torch.equal(second, third) == equal
        statistics = [client.get_submodule(name)[1].state_dict() for name in heads]
        assert all(same(statistics[0], other) for other in statistics)


def test_a_head_that_cannot_be_reinitialized_is_refused():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, small.CLASSES))

        def forward(self, z):
            return z @ self.weight

    model = Backbone(small.plain().extractor, nn.Sequential(Own()), 5)
    with pytest.raises(ConfigError, match="parameters of 0 cannot be reinitialized: Own has no reset_parameters"):
        small.experiment("fedpick", model=model)
    small.experiment("fedpick", model=model, init_heads_from_global=True)


def test_the_selectors_gradient_is_a_finite_difference_of_the_loss():
    experiment = small.experiment("fedpick", mask="soft", tau=0.7, lam_ent=0.3, model=BN)
    x, y, _ = next(iter(experiment.data.batches(0, 1, 0)))
    client = deepcopy(experiment.part_table.client).train()

    def loss():
        return experiment.method.loss(client, Batch(x, y, torch.tensor(9)))[0]

    parameters = [*client.selector.parameters(), *client.extractor.parameters()]
    gradients = torch.autograd.grad(loss(), parameters)
    step = 1e-6
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for place in range(0, parameter.numel(), 3):
            value = parameter.data.view(-1)
            value[place] += step
            above = loss().item()
            value[place] -= 2 * step
            below = loss().item()
            value[place] += step
            assert gradient.view(-1)[place].item() == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-8)


def test_the_digits_cnn_is_cut_after_its_convolutions():
    dataset = synthetic(60, (3, 8, 8), 3, seed=1)
    values = {"dataset": dataset, "model": "digits-cnn", "clients": 2, "partition": "iid", "log": lambda _: None}
    part_table = Experiment("fedpick", **values).part_table
    assert part_table.client.selector.logits[0].weight.shape == (256, 512)
    assert part_table.client.relevant_head[0].weight.shape == (2048, 512)
    linear = Experiment("fedpick", **values, model_options=("cut=conv", "head=linear")).part_table
    assert linear.client.relevant_head.weight.shape == (3, 512)


def test_paper_values():
    method = METHODS["fedpick"]
    digits = method.defaults("digits-cnn", "digits5")
    assert digits == {
        "lr": 0.01, "momentum": 0.5, "batch_size": 64, "local_epochs": 1, "tau": 10,
        "lam_lce": 10, "lam_ent": 0.001, "lam_dis": 10, "model_options": ("cut=conv",),
    }  # fmt: skip
    office, domainnet = (method.defaults("alexnet", name) for name in ("office-caltech10", "domainnet"))
    assert office == domainnet
    sizes = {name: method.preset("paper", name)["per_domain"] for name in ("digits5", "office-caltech10", "domainnet")}
    assert sizes == {"digits5": 1000, "office-caltech10": 125, "domainnet": 500}
    assert (office["tau"], office["lam_lce"], office["lam_ent"], office["lam_dis"]) == (1, 1, 0.001, 1)
    assert method.defaults("cnn", "cifar10") == METHODS["fedavg"].defaults("cnn", "cifar10")
    options = {"tau", "lam_lce", "lam_ent", "lam_dis"}
    for other in ("local", "fedavg", "fedprox", "fedper", "fedrep", "lg-fedavg", "fedbn"):  # of the same table
        found = METHODS[other].defaults("digits-cnn", "digits5").items()
        assert digits.items() - {(name, digits[name]) for name in options} <= found, other
