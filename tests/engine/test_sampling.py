from collections import Counter

import pytest

from pfl_fast.engine.sampling import sample
from pfl_fast.engine.settings import RoundSettings


def cohort(clients=20, round=1, **settings):
    return sample(RoundSettings(**settings), clients, round)


@pytest.mark.parametrize(
    ("ratio", "clients", "count"),
    [(1, 7, 7), (0.5, 7, 3), (0.01, 7, 1), (0, 7, 1), (0.29, 100, 29), (0.1, 30, 3), (0.999, 2, 1), (1, 1, 1)],
)
def test_number_of_selected_clients(ratio, clients, count):
    """``max(int(ratio * N), 1)``, without the rounding error of 0.29 * 100."""
    got = cohort(clients, join_ratio=ratio)
    assert len(got.training) == count
    assert got.training == got.uploading == got.receiving == sorted(set(got.training))
    assert set(got.training) <= set(range(clients))


def test_a_draw_is_a_function_of_seed_and_round():
    assert cohort(join_ratio=0.5) == cohort(join_ratio=0.5)
    draws = {tuple(cohort(join_ratio=0.5, seed=seed, round=round).training) for seed in range(3) for round in range(3)}
    assert len(draws) == 9


def test_all_clients_are_equally_likely():
    """600 draws of 5 of 20 clients: 150 per client, and 6 standard deviations are 64."""
    counts = Counter(c for round in range(600) for c in cohort(join_ratio=0.25, round=round).training)
    assert len(counts) == 20
    assert all(abs(count - 150) < 64 for count in counts.values())


def test_random_join_selects_from_the_ratio_up_to_all_clients():
    sizes = Counter(len(cohort(10, join_ratio=0.7, random_join=True, round=round).training) for round in range(200))
    assert set(sizes) == {7, 8, 9, 10}
    assert min(sizes.values()) > 20


@pytest.mark.parametrize(("dropout", "left"), [(0, 10), (0.25, 7), (0.5, 5), (0.94, 1), (1, 1)])
def test_client_dropout_drops_clients_after_training(dropout, left):
    got = cohort(20, join_ratio=0.5, client_dropout=dropout)
    assert (len(got.training), len(got.uploading)) == (10, left)
    assert set(got.uploading) <= set(got.training)
    assert got.receiving == got.training


def test_dropped_clients_differ_between_rounds():
    uploading = {tuple(cohort(client_dropout=0.5, round=round).uploading) for round in range(5)}
    assert len(uploading) == 5


def test_train_all_trains_all_clients_and_averages_the_selected():
    got, usual = cohort(join_ratio=0.2, train_all=True), cohort(join_ratio=0.2)
    assert got.training == got.receiving == list(range(20))
    assert got.uploading == usual.uploading


def test_broadcast_to_all_sends_to_all_clients():
    got, usual = cohort(join_ratio=0.2, broadcast_to_all=True), cohort(join_ratio=0.2)
    assert (got.training, got.uploading, got.receiving) == (usual.training, usual.uploading, list(range(20)))


def test_selected_clients_do_not_depend_on_other_settings():
    """Methods and settings compared at one seed select the same clients."""
    usual = cohort(join_ratio=0.3).training
    assert cohort(join_ratio=0.3, client_dropout=0.5).training == usual
    assert cohort(join_ratio=0.3, lr=1.0, batch_norm="personal").training == usual
