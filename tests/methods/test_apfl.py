import pytest
import torch

from tests.engine import toys
from tests.methods.compare import (
    COMMON,
    assert_equals_naive,
    assert_same,
    distance,
    final,
    initial,
    model_of,
    part_of,
    predictions,
)
from tests.methods.naive_personal import APFL

CASES = {
    **COMMON,
    "a fixed share": {"adaptive": False, "alpha": 0.3, "join_ratio": 0.6},
    "mostly global": {"alpha": 0.1, "lr": 0.5},
    "to the border": {"alpha": 0.9, "lr": 1.0, "rounds": 3},
    "as PFLlib has it": {"compat": "pfllib", "local_epochs": 2, "momentum": 0.5, "weight_decay": 0.05},
    "as PFLlib has it, batch norm": {"compat": "pfllib", "model": toys.with_batch_norm(), "join_ratio": 0.6},
    "as PFLlib has it, a fixed share": {"compat": "pfllib", "adaptive": False, "alpha": 0.3},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_ones(case):
    assert_equals_naive("apfl", CASES[case], APFL)


@pytest.mark.parametrize("compat", ["paper", "pfllib"])
def test_all_personal_is_local_training_to_the_bit(compat):
    values = {"momentum": 0.9, "join_ratio": 0.6}
    options = {"alpha": 1, "adaptive": False, "compat": compat}
    assert_same(model_of(final("apfl", **options, **values), "personal_"), model_of(final("local", **values)))
    assert torch.equal(predictions("apfl", **options, **values), predictions("local", **values))


def test_nothing_personal_is_fedavg():
    values = {"momentum": 0.9, "join_ratio": 0.6}
    options = {"alpha": 0, "adaptive": False}
    assert_same(model_of(final("apfl", **options, **values), "personal_"), model_of(initial("apfl"), "personal_"))
    torch.testing.assert_close(predictions("apfl", **options, **values), predictions("fedavg", **values))


@pytest.mark.parametrize("options", [{}, {"adaptive": False}])
def test_the_shared_model_is_fedavgs_to_the_bit(options):
    assert_same(model_of(final("apfl", **options)), model_of(final("fedavg")))


def test_as_pfllib_has_it_the_shared_model_is_fedavgs_too():
    """Its gradients are changed before they are used, so that they are made first: the same but for rounding."""
    torch.testing.assert_close(model_of(final("apfl", compat="pfllib")), model_of(final("fedavg")))


def test_the_share_follows_the_slope_of_the_loss_and_stays_between_0_and_1():
    shares = part_of(final("apfl", lr=2.0, rounds=4), "mixing", "client").values()
    assert all(0 <= share <= 1 for share in shares)
    assert {0.0, 1.0} & {share.item() for share in shares}
    fixed = part_of(final("apfl", lr=2.0, rounds=4, adaptive=False), "mixing", "client").values()
    assert all(share == 0.5 for share in fixed)


def test_the_share_moves_only_when_the_models_are_apart():
    """In the very first step v and w are the same."""
    (share,) = part_of(final("apfl", sizes=(4,), rounds=1), "mixing", "client").values()
    assert share == 0.5
    (share,) = part_of(final("apfl", sizes=(4,), rounds=3), "mixing", "client").values()
    assert share != 0.5


def test_pfllib_blends_after_each_epoch():
    """With a share of 0 the personal model is overwritten by the global one as its client trained it."""
    state = final("apfl", sizes=(9,), alpha=0, adaptive=False, compat="pfllib")
    assert_same(model_of(state, "personal_"), model_of(state))
    assert distance(model_of(state), model_of(initial("apfl", sizes=(9,)))) > 1e-2
