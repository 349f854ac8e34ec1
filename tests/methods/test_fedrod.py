import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.engine import small_experiments as small
from tests.methods.compare import COMMON, assert_equals_naive, assert_same, distance, final, initial, labelled, model_of
from tests.methods.naive_personal import FedRoD

ONE_CLASS_MISSING = {"sizes": (6,), "tests": 3, "dataset": labelled([0, 1, 1, 0, 1, 1, 0, 1, 2])}
CASES = {
    **COMMON,
    "a class is missing": {**ONE_CLASS_MISSING, "rounds": 3},
    "clients with a class each": {"sizes": (4, 5, 3), "dataset": labelled([0] * 4 + [1] * 5 + [2] * 3 + [0, 1, 2] * 3)},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedrod", CASES[case], FedRoD)


def test_the_generic_head_of_a_missing_class_does_not_change():
    start, state = initial("fedrod", **ONE_CLASS_MISSING), final("fedrod", **ONE_CLASS_MISSING)
    for name in ("weight", "bias"):
        before, after = start[f"server head.{name}"], state[f"server head.{name}"]
        assert torch.equal(after[2], before[2])
        assert not torch.equal(after[0], before[0])
        personal = [s[f"client 0 personal_head.{name}"][2] for s in (start, state)]
        assert not torch.equal(*personal), "the personal head learns that the class is missing"
    with small.trained("fedrod", **ONE_CLASS_MISSING) as running:
        assert all(0 < record["train_loss"] < 10 for record in running.records)
        assert running.client(0)(torch.zeros(1, 6).double()).isfinite().all()


def test_with_balanced_classes_the_generic_model_equals_fedavg():
    """All log counts are equal, and the personal loss reaches only the personal head."""
    values = {"sizes": (6, 9), "dataset": labelled([0, 1, 2] * 5 + [0, 1, 2] * 2), "momentum": 0.9}
    assert_same(model_of(final("fedrod", **values)), model_of(final("fedavg", **values)), 1e-9)
    skewed = {**values, "dataset": labelled([0, 1, 1] * 5 + [0, 1, 2] * 2)}
    assert distance(model_of(final("fedrod", **skewed)), model_of(final("fedavg", **skewed))) > 1e-3


def test_a_single_class_gives_the_generic_head_no_gradient():
    """With samples of one class only, the balanced loss is zero."""
    values = {"sizes": (5,), "dataset": labelled([1] * 5 + [0, 1, 2])}
    assert_same(model_of(final("fedrod", **values)), model_of(initial("fedrod", **values)))


def test_the_prediction_adds_both_heads():
    with small.trained("fedrod") as running:
        x, y = running.data.take(running.data.indices("train", 0))
        client = running.client(0)
        z = client.client.extractor(x)
        torch.testing.assert_close(client(x), client.client.head(z) + client.client.personal_head(z))
        assert F.cross_entropy(client(x), y) < F.cross_entropy(client.client.head(z), y)
