import pytest

from tests.methods.compare import COMMON, assert_equals_naive, assert_same, distance, final, initial, model_of
from tests.methods.naive_regularised import FedProx

CASES = {
    **COMMON,
    "strong": {"mu": 2.0, "local_epochs": 2, "momentum": 0.5},
    "none": {"mu": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedprox", CASES[case], FedProx)


def test_with_mu_0_it_is_fedavg_to_the_bit():
    values = {"local_epochs": 2, "momentum": 0.9, "join_ratio": 0.6}
    assert_same(model_of(final("fedprox", mu=0, **values)), model_of(final("fedavg", **values)))


def test_a_larger_mu_keeps_clients_closer_to_the_start():
    values = {"rounds": 1, "local_epochs": 3}
    start = model_of(initial("fedprox"), owner="server")
    distances = [distance(model_of(final("fedprox", mu=mu, **values), owner="server"), start) for mu in (0, 0.1, 1, 5)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.7 * distances[0]


def test_the_proximal_term_is_zero_in_the_first_step():
    values = {"rounds": 1, "sizes": (4, 3)}
    assert_same(model_of(final("fedprox", mu=5, **values)), model_of(final("fedavg", **values)), 1e-12)
