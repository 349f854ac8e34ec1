import pytest
import torch

from tests.engine import small_experiments as small
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
    "only the MMD": {"lam": 1.0, "rounds": 3},
    "mu 0": {"mu": 0, "rounds": 3, "model": small.with_batch_norm()},
    "own model predicts": {"inference": "local", "rounds": 3, "join_ratio": 0.6},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedphp", CASES[case], FedPHP)


def test_without_the_mmd_the_shared_model_equals_fedavg():
    values = {"lam": 0, "momentum": 0.9, "join_ratio": 0.6}
    state = final("fedphp", **values)
    assert_same(model_of(state), model_of(final("fedavg", momentum=0.9, join_ratio=0.6)))
    torch.testing.assert_close(
        predictions("fedphp", inference="local", **values), predictions("fedavg", momentum=0.9, join_ratio=0.6)
    )


def test_with_mu_0_the_inherited_model_is_the_trained_one():
    values = {"sizes": (9,), "momentum": 0.9}
    alone = model_of(final("local", **values))
    assert_same(model_of(final("fedphp", mu=0, lam=0, **values), "inherited_"), alone)


def test_with_mu_1_the_last_round_does_not_change_the_inherited_model():
    start = model_of(initial("fedphp"), "inherited_")
    assert_same(model_of(final("fedphp", mu=1, rounds=1), "inherited_"), start)
    assert distance(model_of(final("fedphp", mu=1, rounds=2), "inherited_"), start) > 1e-3


def test_a_larger_mu_changes_the_inherited_model_less():
    distances = []
    for mu in (0, 0.5, 0.9):
        values = {"mu": mu, "lam": 0, "rounds": 1}
        distances.append(
            distance(model_of(final("fedphp", **values), "inherited_"), model_of(initial("fedphp"), "inherited_"))
        )
    assert distances[1] == pytest.approx(0.5 * distances[0])
    assert distances[2] == pytest.approx(0.1 * distances[0])


def test_the_mmd_keeps_features_close_to_the_inherited_ones():
    """With a large lam the model stays close to the inherited one."""

    def feature_distance(lam):
        with small.trained(
            "fedphp", lam=lam, rounds=6, mu=1, local_epochs=3, lr=0.5, sizes=(8,), batch_size=8
        ) as running:
            x, _ = running.data.take(running.data.indices("train", 0))
            client = running.client(0).client
            return (client.extractor(x) - client.inherited_extractor(x)).norm().item()

    assert feature_distance(0.9) < 0.5 * feature_distance(0)
