import pytest
import torch

from tests.engine import toys
from tests.methods.compare import LONGER, assert_equals_naive, distance, final, initial, model_of, part_of
from tests.methods.naive_regularised import FedDyn

CASES = {
    **LONGER,
    "strong": {"alpha": 1.0, "rounds": 3, "join_ratio": 0.6},
    "norm without a square": {"compat": "pfllib", "alpha": 0.5, "rounds": 3, "local_epochs": 2},
    "norm without a square, batch norm": {"compat": "pfllib", "model": toys.with_batch_norm(), "join_ratio": 0.6},
    "some clients, some lost": {"join_ratio": 0.8, "client_dropout": 0.5, "rounds": 4, "alpha": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_ones(case):
    assert_equals_naive("feddyn", CASES[case], FedDyn)


def test_the_servers_correction_is_the_mean_over_all_clients_whoever_takes_part():
    state = final("feddyn", join_ratio=0.4, rounds=3, alpha=0.5)
    for name, h in part_of(state, "correction", "server").items():
        theirs = [state[f"client {i} correction.{name.removeprefix('server ')}"] for i in range(5)]
        assert any(t.count_nonzero() == 0 for t in theirs), "somebody was never asked"
        torch.testing.assert_close(h, torch.stack(theirs).mean(0), rtol=1e-9, atol=1e-9)
        assert h.norm() > 0


def test_one_client_goes_as_far_again():
    """``w - h / alpha`` with ``h = -alpha (w - start)``; in the first step there is no pull yet."""
    values = {"sizes": (4,), "rounds": 1}
    start, alone = (model_of(f("local", **values)) for f in (initial, final))
    for name, w in model_of(final("feddyn", **values)).items():
        torch.testing.assert_close(w, 2 * alone[name] - start[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compat", ["paper", "pfllib"])
def test_the_stronger_the_pull_the_nearer_to_the_start(compat):
    moved = []
    for alpha in (0.01, 1.0, 3.0):
        state = final("feddyn", alpha=alpha, compat=compat, rounds=1, local_epochs=4, batch_size=16, lr=0.2)
        corrections = part_of(state, "correction", "client")
        moved.append(distance(corrections, {name: torch.zeros_like(h) for name, h in corrections.items()}) / alpha)
    assert moved[0] > moved[1] > moved[2] > 0


def test_the_two_pulls_differ():
    values = {"rounds": 1, "local_epochs": 2, "alpha": 0.5}
    assert distance(*(model_of(final("feddyn", compat=c, **values)) for c in ("paper", "pfllib"))) > 1e-3
