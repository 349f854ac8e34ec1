import pytest

from tests.methods.compare import COMMON, assert_equals_naive, assert_same, distance, final, model_of
from tests.methods.naive_personal import Ditto

CASES = {
    **COMMON,
    "weak": {"lam": 0.1, "momentum": 0.5},
    "two personal epochs": {"personal_epochs": 2, "local_epochs": 3, "lr_decay": 0.5},
    "no proximal term": {"lam": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("ditto", CASES[case], Ditto)


def test_without_the_proximal_term_the_personal_models_equal_local_to_the_bit():
    values = {"momentum": 0.9, "join_ratio": 0.6}
    assert_same(model_of(final("ditto", lam=0, **values), "personal_"), model_of(final("local", **values)))


@pytest.mark.parametrize("lam", [0, 1])
def test_the_global_model_equals_fedavg_to_the_bit(lam):
    """Without shuffling: the second phase has other epoch numbers."""
    values = {"shuffle": False, "momentum": 0.9, "join_ratio": 0.6}
    assert_same(model_of(final("ditto", lam=lam, **values)), model_of(final("fedavg", **values)))


def test_a_larger_lam_keeps_personal_models_closer_to_the_global_one():
    distances = []
    for lam in (0, 0.5, 2, 8):
        state = final("ditto", lam=lam, rounds=4)
        distances.append(distance(model_of(state, "personal_"), model_of(state)))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5 * distances[0]


def test_more_personal_epochs_change_the_personal_models():
    states = [final("ditto", personal_epochs=n, shuffle=False) for n in (1, 3)]
    assert_same(*(model_of(state) for state in states))
    assert distance(*(model_of(state, "personal_") for state in states)) > 1e-2
