import pytest
import torch

from tests.engine import toys
from tests.methods.compare import (
    LONGER,
    assert_equals_naive,
    assert_same,
    distance,
    final,
    initial,
    model_of,
    predictions,
)
from tests.methods.naive_regularised import FedPHP

CASES = {
    **LONGER,
    "strong": {"lam": 0.9, "rounds": 3, "local_epochs": 2},
    "only the discrepancy": {"lam": 1.0, "rounds": 3},
    "all at once": {"mu": 0, "rounds": 3, "model": toys.with_batch_norm()},
    "own model predicts": {"inference": "local", "rounds": 3, "join_ratio": 0.6},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_ones(case):
    assert_equals_naive("fedphp", CASES[case], FedPHP)


def test_without_the_discrepancy_the_shared_model_is_fedavgs():
    values = {"lam": 0, "momentum": 0.9, "join_ratio": 0.6}
    state = final("fedphp", **values)
    assert_same(model_of(state), model_of(final("fedavg", momentum=0.9, join_ratio=0.6)))
    torch.testing.assert_close(
        predictions("fedphp", inference="local", **values), predictions("fedavg", momentum=0.9, join_ratio=0.6)
    )


def test_who_inherits_nothing_keeps_what_it_trained():
    values = {"sizes": (9,), "momentum": 0.9}
    alone = model_of(final("local", **values))
    assert_same(model_of(final("fedphp", mu=0, lam=0, **values), "inherited_"), alone)


def test_the_last_round_of_mu_one_leaves_the_inherited_model():
    start = model_of(initial("fedphp"), "inherited_")
    assert_same(model_of(final("fedphp", mu=1, rounds=1), "inherited_"), start)
    assert distance(model_of(final("fedphp", mu=1, rounds=2), "inherited_"), start) > 1e-3


def test_the_inherited_model_lags_behind_the_more_the_larger_mu_is():
    moved = []
    for mu in (0, 0.5, 0.9):
        values = {"mu": mu, "lam": 0, "rounds": 1}
        moved.append(
            distance(model_of(final("fedphp", **values), "inherited_"), model_of(initial("fedphp"), "inherited_"))
        )
    assert moved[1] == pytest.approx(0.5 * moved[0])
    assert moved[2] == pytest.approx(0.1 * moved[0])


def test_the_discrepancy_holds_features_near_the_inherited_ones():
    """By the discrepancy alone, the model goes back to the inherited one, which lags behind."""

    def apart(lam):
        with toys.ran("fedphp", lam=lam, rounds=6, mu=1, local_epochs=3, lr=0.5, sizes=(8,), batch_size=8) as running:
            x, _ = running.data.take(running.data.indices("train", 0))
            client = running.client(0).client
            return (client.extractor(x) - client.inherited_extractor(x)).norm().item()

    assert apart(0.9) < 0.5 * apart(0)
