import pytest
from torch import nn

from pfl_fast.models import Backbone
from tests.engine import small_experiments as small
from tests.methods.compare import COMMON, assert_equals_naive
from tests.methods.naive_fedcp import CPFederation

SWITCHES = {
    "policy input: the features": {"cpn_input": "h"},
    "policy input: the context": {"cpn_input": "v", "join_ratio": 0.6},
    "policy input: a random vector": {"cpn_input": "random", "join_ratio": 0.6},
    "deep policy": {"cpn_depth": 3},
    "policy with batch norm": {"cpn_norm": "bn"},
    "policy with group norm": {"cpn_norm": "gn"},
    "tanh": {"cpn_act": "tanh"},
    "sigmoid, group norm": {"cpn_act": "sigmoid", "cpn_norm": "gn"},
    "gumbel": {"policy": "gumbel", "local_epochs": 2},
    "gumbel, batch norm": {"policy": "gumbel", "cpn_norm": "bn", "sizes": (11, 4, 7, 3)},
    "no policy": {"cpn": False},
    "no policy, half each": {"cpn": False, "without_cpn": "half"},
    "no frozen extractor": {"gfm": False},
    "no policy, no frozen extractor": {"cpn": False, "gfm": False},
    "no policy, no global head": {"cpn": False, "gh": False},
    "nothing": {"cpn": False, "gh": False, "gfm": False},
    "another lam": {"lam": 0.1},
    "no lam": {"lam": 0},
    "random context at first": {"random_first": True, "join_ratio": 0.6},
    "frozen extractor in evaluation mode": {"frozen_eval": True, "model": small.with_batch_norm()},
    "extractor to all": {"extractor_to_all": True, "join_ratio": 0.4, "model": small.with_batch_norm()},
    "the authors' code": {"preset": "official", "batch_size": 3, "join_ratio": 0.6, "gumbel_at_eval": False},
}


@pytest.mark.parametrize("case", COMMON)
def test_two_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedcp", COMMON[case], CPFederation)


@pytest.mark.parametrize("case", SWITCHES)
def test_two_rounds_equal_the_naive_implementation_under_every_switch(case):
    assert_equals_naive("fedcp", SWITCHES[case], CPFederation)


def test_a_head_of_several_layers():
    model = small.plain()
    width = model.feature_width
    deep = Backbone(model.extractor, nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, small.CLASSES)), width)
    assert_equals_naive("fedcp", {"model": deep}, CPFederation)


def test_the_personal_information_ratio_is_the_mean_of_s():
    running, expected = assert_equals_naive("fedcp", {"local_epochs": 2}, CPFederation)
    shares = [pair for client in expected.clients for pair in client.shares]
    recorded = sum(r["pir"] * r["samples"] for r in running.records)
    assert recorded == pytest.approx(sum(n * share for n, share in shares))
    assert all(0 < r["pir"] < 1 for r in running.records)
