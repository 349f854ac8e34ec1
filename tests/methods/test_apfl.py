import pytest
import torch

from tests.engine import small_experiments as small
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
    "fixed alpha": {"adaptive": False, "alpha": 0.3, "join_ratio": 0.6},
    "mostly global": {"alpha": 0.1, "lr": 0.5},
    "alpha reaches 1": {"alpha": 0.9, "lr": 1.0, "rounds": 3},
    "compat=pfllib": {"compat": "pfllib", "local_epochs": 2, "momentum": 0.5, "weight_decay": 0.05},
    "compat=pfllib, batch norm": {"compat": "pfllib", "model": small.with_batch_norm(), "join_ratio": 0.6},
    "compat=pfllib, fixed alpha": {"compat": "pfllib", "adaptive": False, "alpha": 0.3},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("apfl", CASES[case], APFL)


@pytest.mark.parametrize("compat", ["paper", "pfllib"])
def test_alpha_1_is_local_training_to_the_bit(compat):
    values = {"momentum": 0.9, "join_ratio": 0.6}
    options = {"alpha": 1, "adaptive": False, "compat": compat}
    assert_same(model_of(final("apfl", **options, **values), "personal_"), model_of(final("local", **values)))
    assert torch.equal(predictions("apfl", **options, **values), predictions("local", **values))


def test_alpha_0_is_fedavg():
    values = {"momentum": 0.9, "join_ratio": 0.6}
    options = {"alpha": 0, "adaptive": False}
    assert_same(model_of(final("apfl", **options, **values), "personal_"), model_of(initial("apfl"), "personal_"))
    torch.testing.assert_close(predictions("apfl", **options, **values), predictions("fedavg", **values))


@pytest.mark.parametrize("options", [{}, {"adaptive": False}])
def test_the_shared_model_equals_fedavg_to_the_bit(options):
    assert_same(model_of(final("apfl", **options)), model_of(final("fedavg")))


def test_with_compat_pfllib_the_shared_model_equals_fedavg():
    """Up to rounding: edited gradients are computed before the step, not fused with it."""
    torch.testing.assert_close(model_of(final("apfl", compat="pfllib")), model_of(final("fedavg")))


def test_alpha_is_trained_and_stays_between_0_and_1():
    shares = part_of(final("apfl", lr=2.0, rounds=4), "mixing", "client").values()
    assert all(0 <= share <= 1 for share in shares)
    assert {0.0, 1.0} & {share.item() for share in shares}
    fixed = part_of(final("apfl", lr=2.0, rounds=4, adaptive=False), "mixing", "client").values()
    assert all(share == 0.5 for share in fixed)


def test_alpha_changes_only_when_the_models_differ():
    """In the first step v and w are equal."""
    (share,) = part_of(final("apfl", sizes=(4,), rounds=1), "mixing", "client").values()
    assert share == 0.5
    (share,) = part_of(final("apfl", sizes=(4,), rounds=3), "mixing", "client").values()
    assert share != 0.5


def test_with_compat_pfllib_the_models_are_mixed_after_each_epoch():
    """With alpha 0 the trained shared model overwrites the personal one."""
    state = final("apfl", sizes=(9,), alpha=0, adaptive=False, compat="pfllib")
    assert_same(model_of(state, "personal_"), model_of(state))
    assert distance(model_of(state), model_of(initial("apfl", sizes=(9,)))) > 1e-2
