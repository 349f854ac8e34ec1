import pytest
import torch

from tests.engine import small_experiments as small
from tests.methods.compare import LONGER, assert_equals_naive, distance, final, initial, model_of, part_of
from tests.methods.naive_regularised import FedDyn

CASES = {
    **LONGER,
    "strong": {"alpha": 1.0, "rounds": 3, "join_ratio": 0.6},
    "norm not squared": {"compat": "pfllib", "alpha": 0.5, "rounds": 3, "local_epochs": 2},
    "norm not squared, batch norm": {"compat": "pfllib", "model": small.with_batch_norm(), "join_ratio": 0.6},
    "some clients, some lost": {"join_ratio": 0.8, "client_dropout": 0.5, "rounds": 4, "alpha": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("feddyn", CASES[case], FedDyn)


def test_the_servers_correction_is_the_mean_over_all_clients():
    state = final("feddyn", join_ratio=0.4, rounds=3, alpha=0.5)
    for name, h in part_of(state, "correction", "server").items():
        theirs = [state[f"client {i} correction.{name.removeprefix('server ')}"] for i in range(5)]
        assert any(t.count_nonzero() == 0 for t in theirs), "a client never took part"
        torch.testing.assert_close(h, torch.stack(theirs).mean(0), rtol=1e-9, atol=1e-9)
        assert h.norm() > 0


def test_the_server_doubles_the_change_of_a_single_client():
    """``w - h / alpha`` with ``h = -alpha (w - start)``; the regulariser is zero in the first step."""
    values = {"sizes": (4,), "rounds": 1}
    start, alone = (model_of(f("local", **values)) for f in (initial, final))
    for name, w in model_of(final("feddyn", **values)).items():
        torch.testing.assert_close(w, 2 * alone[name] - start[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compat", ["paper", "pfllib"])
def test_a_larger_alpha_keeps_clients_closer_to_the_start(compat):
    distances = []
    for alpha in (0.01, 1.0, 3.0):
        state = final("feddyn", alpha=alpha, compat=compat, rounds=1, local_epochs=4, batch_size=16, lr=0.2)
        corrections = part_of(state, "correction", "client")
        distances.append(distance(corrections, {name: torch.zeros_like(h) for name, h in corrections.items()}) / alpha)
    assert distances[0] > distances[1] > distances[2] > 0


def test_the_norm_and_its_square_differ():
    values = {"rounds": 1, "local_epochs": 2, "alpha": 0.5}
    assert distance(*(model_of(final("feddyn", compat=c, **values)) for c in ("paper", "pfllib"))) > 1e-3
