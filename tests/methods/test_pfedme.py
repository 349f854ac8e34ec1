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
    predictions,
)
from tests.methods.naive_personal import PFedMe

CASES = {
    **COMMON,
    "one inner step": {"k": 1, "local_epochs": 2},
    "half of the mean": {"server_step": 0.5, "join_ratio": 0.6, "model": small.with_batch_norm()},
    "weak": {"lam": 1.0, "momentum": 0.5},
    "large inner steps": {"personal_lr": 0.05, "lr_decay": 0.5},
    "decay of theta": {"compat": "pfllib", "momentum": 0.5, "weight_decay": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("pfedme", CASES[case], PFedMe)


def test_with_lam_0_theta_equals_local_and_w_does_not_change():
    values = {"lam": 0, "k": 1, "personal_lr": 0.1, "momentum": 0.9}
    state = final("pfedme", rounds=1, **values)
    assert_same(model_of(state, "personal_"), model_of(final("local", rounds=1, momentum=0.9)))
    assert_same(model_of(final("pfedme", **values), owner="server"), model_of(initial("pfedme"), owner="server"), 1e-12)


def test_a_larger_lam_keeps_theta_closer_to_w():
    """With a small learning rate of w, so that w hardly changes."""
    distances = []
    for lam in (0, 5, 15):
        state = final("pfedme", lam=lam, rounds=1, lr=1e-6, local_epochs=3)
        distances.append(distance(model_of(state, "personal_"), model_of(state)))
    assert distances[0] > distances[1] > distances[2] > 0


def test_w_steps_towards_theta():
    """One batch, ``lr * lam = 1``: w becomes theta."""
    state = final("pfedme", sizes=(4,), rounds=1, lam=10, lr=0.1)
    assert_same(model_of(state), model_of(state, "personal_"), 1e-12)
    assert distance(model_of(state), model_of(initial("pfedme", sizes=(4,)))) > 1e-3


def test_server_step_is_the_weight_of_the_new_average():
    start, whole = (model_of(f("pfedme", rounds=1), owner="server") for f in (initial, final))
    for name, w in model_of(final("pfedme", rounds=1, server_step=0.25), owner="server").items():
        torch.testing.assert_close(w, 0.75 * start[name] + 0.25 * whole[name])
    assert_same(model_of(final("pfedme", server_step=0), owner="server"), start)


def test_a_client_predicts_with_theta():
    assert not torch.allclose(*predictions("pfedme")[:2])


def test_compat_pfllib_decays_theta():
    values = {"lr": 0, "rounds": 1, "local_epochs": 5}
    assert (
        1e-6
        < distance(*(model_of(final("pfedme", compat=c, **values), "personal_") for c in ("paper", "pfllib")))
        < 0.1
    )
