import pytest

from tests.methods.compare import COMMON, assert_equals_naive, assert_same, distance, final, initial, model_of
from tests.methods.naive_regularised import FedProx

CASES = {
    **COMMON,
    "strong": {"mu": 2.0, "local_epochs": 2, "momentum": 0.5},
    "none": {"mu": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_ones(case):
    assert_equals_naive("fedprox", CASES[case], FedProx)


def test_without_the_pull_it_is_fedavg_to_the_bit():
    values = {"local_epochs": 2, "momentum": 0.9, "join_ratio": 0.6}
    assert_same(model_of(final("fedprox", mu=0, **values)), model_of(final("fedavg", **values)))


def test_the_stronger_the_pull_the_nearer_to_the_start():
    values = {"rounds": 1, "local_epochs": 3}
    start = model_of(initial("fedprox"), owner="server")
    moved = [distance(model_of(final("fedprox", mu=mu, **values), owner="server"), start) for mu in (0, 0.1, 1, 5)]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.7 * moved[0]


def test_the_first_step_feels_no_pull():
    """There is nothing to be pulled back from."""
    values = {"rounds": 1, "sizes": (4, 3)}
    assert_same(model_of(final("fedprox", mu=5, **values)), model_of(final("fedavg", **values)), 1e-12)
