import pytest

from tests.engine import small_experiments as small
from tests.methods.compare import COMMON, assert_equals_naive, assert_same, distance, final, model_of, part_of
from tests.methods.naive_regularised import FedAvgFT

CASES = {
    **COMMON,
    "one epoch": {"fine_tuning_epochs": 1, "join_ratio": 0.6},
    "decayed learning rate": {"fine_tuning_epochs": 2, "lr_decay": 0.1, "momentum": 0.9},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_and_fine_tuning_equal_the_naive_implementation(case):
    assert_equals_naive("fedavg-ft", CASES[case], FedAvgFT)


def test_before_the_fine_tuning_it_is_fedavg():
    values = {"join_ratio": 0.6, "momentum": 0.5}
    fedavg, fine_tuned_parts = final("fedavg", **values), final("fedavg-ft", **values)
    assert_same(model_of(fine_tuned_parts, owner="server"), model_of(fedavg, owner="server"))
    assert distance(model_of(fine_tuned_parts), model_of(fedavg)) > 1e-2


def test_all_clients_fine_tune_in_a_separate_round():
    with small.trained("fedavg-ft", join_ratio=0.4) as running:
        assert [r["round"] for r in running.records] == [1, 2, 3]
        assert [r["clients_trained"] for r in running.records] == [2, 2, 5]
        assert running.records[-1]["uploaded_values"] == 0
        weights = part_of(small.state_of(running), "head", "client")
    assert len({tuple(t.flatten().tolist()) for name, t in weights.items() if name.endswith("weight")}) == 5


def test_one_epoch_of_fine_tuning_of_a_single_client_equals_another_round():
    values = {"sizes": (9,), "lr_decay": 0.5, "momentum": 0.9}
    longer = final("local", rounds=3, **values)
    assert_same(model_of(final("fedavg-ft", fine_tuning_epochs=1, **values)), model_of(longer), 1e-12)
