import pytest
import torch

from pfl_fast.engine.sampling import sample
from tests.engine import small_experiments as small
from tests.methods.compare import LONGER, assert_equals_naive, assert_same, distance, final, initial, model_of, part_of
from tests.methods.naive_regularised import Scaffold

CASES = {
    **LONGER,
    "half a step of the server": {"server_lr": 0.5, "rounds": 3, "join_ratio": 0.6},
    "some clients, some lost": {"join_ratio": 0.8, "client_dropout": 0.5, "rounds": 4, "lr_decay": 0.9},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("scaffold", CASES[case], Scaffold)


def controls(state, clients):
    """Returns the control variates of the server and of each client, as vectors."""
    owners = ["server", *(f"client {client}" for client in clients)]
    server, *theirs = (torch.cat([t.flatten() for t in part_of(state, "control", o).values()]) for o in owners)
    return server, torch.stack(theirs)


def test_the_servers_control_is_the_mean_over_all_clients():
    server, theirs = controls(final("scaffold", join_ratio=0.4, rounds=3), range(5))
    torch.testing.assert_close(server, theirs.mean(0), rtol=1e-9, atol=1e-9)
    assert server.norm() > 1e-3
    assert (theirs.norm(dim=1) == 0).any(), "somebody was never asked"


def test_lost_uploads_are_missing_from_the_servers_control():
    with small.trained("scaffold", rounds=1, client_dropout=0.4) as running:
        uploads = sample(running.settings, 5, 1).uploading
        server, theirs = controls(small.state_of(running), range(5))
    assert len(uploads) == 3
    torch.testing.assert_close(server, theirs[uploads].sum(0) / 5, rtol=1e-9, atol=1e-9)
    assert (theirs.norm(dim=1) > 0).all(), "who is lost has trained all the same"


def test_the_first_round_equals_fedavg_if_clients_have_equally_many_samples():
    values = {"sizes": (4, 4, 4), "local_epochs": 2}
    scaffold, fedavg = (model_of(final(m, rounds=1, **values)) for m in ("scaffold", "fedavg"))
    assert_same(scaffold, fedavg, 1e-9)
    scaffold, fedavg = (model_of(final(m, rounds=2, **values)) for m in ("scaffold", "fedavg"))
    assert distance(scaffold, fedavg) > 1e-4


def test_averages_are_not_weighted_by_samples():
    server = model_of(final("scaffold", rounds=1, sizes=(12, 4)), owner="server")
    alone = [model_of(final("local", rounds=1, sizes=(12, 4)), owner=f"client {i}") for i in (0, 1)]
    for name, tensor in server.items():
        mine = [alone[i][name.replace("server", f"client {i}")] for i in (0, 1)]
        torch.testing.assert_close(tensor, (mine[0] + mine[1]) / 2)


def test_the_correction_vanishes_for_one_client():
    values = {"sizes": (9,), "rounds": 3, "momentum": 0.5}
    assert_same(model_of(final("scaffold", **values)), model_of(final("local", **values)), 1e-9)


def test_with_server_lr_0_the_model_does_not_change():
    state = final("scaffold", server_lr=0)
    assert_same(model_of(state, owner="server"), model_of(initial("scaffold"), owner="server"))
    assert controls(state, range(5))[0].norm() > 0
