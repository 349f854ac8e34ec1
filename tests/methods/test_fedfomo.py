import pytest
import torch

from tests.engine import small_experiments as small
from tests.methods.compare import LONGER, assert_equals_naive, assert_same, distance, final, labelled, model_of, part_of
from tests.methods.naive_servers import FedFomo

CASES = {
    **{case: {"validation": 2, **values} for case, values in LONGER.items()},
    "no validation samples": {"rounds": 3, "local_epochs": 2},
    "two models each": {"m": 2, "validation": 3, "rounds": 4},
    "three models each, some clients": {"m": 3, "validation": 2, "rounds": 4, "join_ratio": 0.8},
    "more models than clients": {"m": 20, "validation": 2, "rounds": 3, "client_dropout": 0.4},
    "batch norm, no validation samples": {"model": small.with_batch_norm(), "rounds": 3, "m": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedfomo", CASES[case], FedFomo)


def test_with_m_1_it_is_local_to_the_bit():
    values = {"momentum": 0.9, "rounds": 3, "validation": 2, "join_ratio": 0.6}
    alone = model_of(final("local", **values))
    assert_same(model_of(final("fedfomo", m=1, **values)), alone)
    assert distance(model_of(final("fedfomo", m=5, **values)), alone) > 1e-3


def test_affinity_is_largest_between_clients_with_the_same_labels():
    """Clients 2 and 3 have swapped labels."""
    dataset = small.features(4 * 12 + 4 * 3)
    sign = torch.as_tensor(dataset.x[:, 0] > 0).long()
    client = torch.tensor([i for i in range(4) for _ in range(12)] + [i for i in range(4) for _ in range(3)])
    values = {"sizes": (12,) * 4, "rounds": 4, "local_epochs": 3, "lr": 0.3}
    dataset = labelled(torch.where(client < 2, sign, 1 - sign).tolist())
    affinity = final("fedfomo", dataset=dataset, **values)["server affinity"]
    for mine, (friend, *strangers) in {0: (1, 2, 3), 1: (0, 2, 3), 2: (3, 0, 1), 3: (2, 0, 1)}.items():
        assert affinity[mine, friend] > max(affinity[mine, stranger] for stranger in strangers)
        assert affinity[mine, mine] > 0


def test_absent_clients_have_no_affinity():
    with small.trained("fedfomo", join_ratio=0.4, rounds=1) as running:
        affinity = small.state_of(running)["server affinity"]
    taking_part = affinity.abs().sum(1) > 0
    assert taking_part.sum() == 2
    assert affinity[:, ~taking_part].count_nonzero() == 0


def test_start_holds_the_model_before_the_last_local_training():
    values = {"momentum": 0.5, "m": 1}
    before, after = final("fedfomo", rounds=1, **values), final("fedfomo", rounds=2, **values)
    for part in ("extractor", "head"):
        assert_same(part_of(after, f"start.{part}", "client"), part_of(before, part, "client"))
