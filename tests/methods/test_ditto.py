import pytest

from tests.methods.compare import COMMON, assert_equals_naive, assert_same, distance, final, model_of
from tests.methods.naive_personal import Ditto

CASES = {
    **COMMON,
    "weak": {"lam": 0.1, "momentum": 0.5},
    "two personal epochs": {"personal_epochs": 2, "local_epochs": 3, "lr_decay": 0.5},
    "no pull": {"lam": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_ones(case):
    assert_equals_naive("ditto", CASES[case], Ditto)


def test_without_the_pull_every_client_trains_alone_to_the_bit():
    values = {"momentum": 0.9, "join_ratio": 0.6}
    assert_same(model_of(final("ditto", lam=0, **values), "personal_"), model_of(final("local", **values)))


@pytest.mark.parametrize("lam", [0, 1])
def test_the_global_model_is_fedavgs_to_the_bit(lam):
    """In whichever order: the second phase has other numbers of epochs."""
    values = {"shuffle": False, "momentum": 0.9, "join_ratio": 0.6}
    assert_same(model_of(final("ditto", lam=lam, **values)), model_of(final("fedavg", **values)))


def test_the_stronger_the_pull_the_nearer_are_personal_models_to_the_global_one():
    apart = []
    for lam in (0, 0.5, 2, 8):
        state = final("ditto", lam=lam, rounds=4)
        apart.append(distance(model_of(state, "personal_"), model_of(state)))
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < 0.5 * apart[0]


def test_more_personal_epochs_change_the_personal_models():
    states = [final("ditto", personal_epochs=n, shuffle=False) for n in (1, 3)]
    assert_same(*(model_of(state) for state in states))
    assert distance(*(model_of(state, "personal_") for state in states)) > 1e-2
