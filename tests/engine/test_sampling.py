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
def test_how_many(ratio, clients, count):
    """``max(int(ratio * N), 1)``, without 0.29 * 100 being 28."""
    got = cohort(clients, join_ratio=ratio)
    assert len(got.training) == count
    assert got.training == got.uploading == got.receiving == sorted(set(got.training))
    assert set(got.training) <= set(range(clients))


def test_a_draw_is_a_function_of_seed_and_round():
    assert cohort(join_ratio=0.5) == cohort(join_ratio=0.5)
    draws = {tuple(cohort(join_ratio=0.5, seed=seed, round=round).training) for seed in range(3) for round in range(3)}
    assert len(draws) == 9


def test_every_client_is_as_likely():
    """600 draws of 5 of 20: 150 each, and 6 standard deviations are 64."""
    counts = Counter(c for round in range(600) for c in cohort(join_ratio=0.25, round=round).training)
    assert len(counts) == 20
    assert all(abs(count - 150) < 64 for count in counts.values())


def test_random_join_reaches_from_the_ratio_to_all():
    sizes = Counter(len(cohort(10, join_ratio=0.7, random_join=True, round=round).training) for round in range(200))
    assert set(sizes) == {7, 8, 9, 10}
    assert min(sizes.values()) > 20


@pytest.mark.parametrize(("dropout", "left"), [(0, 10), (0.25, 7), (0.5, 5), (0.94, 1), (1, 1)])
def test_clients_lost_after_training(dropout, left):
    got = cohort(20, join_ratio=0.5, client_dropout=dropout)
    assert (len(got.training), len(got.uploading)) == (10, left)
    assert set(got.uploading) <= set(got.training)
    assert got.receiving == got.training


def test_who_is_lost_changes():
    lost = {tuple(cohort(client_dropout=0.5, round=round).uploading) for round in range(5)}
    assert len(lost) == 5


def test_all_train_and_some_are_averaged():
    got, usual = cohort(join_ratio=0.2, train_all=True), cohort(join_ratio=0.2)
    assert got.training == got.receiving == list(range(20))
    assert got.uploading == usual.uploading


def test_sent_to_all():
    got, usual = cohort(join_ratio=0.2, broadcast_to_all=True), cohort(join_ratio=0.2)
    assert (got.training, got.uploading, got.receiving) == (usual.training, usual.uploading, list(range(20)))


def test_clients_drawn_do_not_depend_on_what_happens_to_them():
    """Methods and settings compared at one seed see the same clients."""
    usual = cohort(join_ratio=0.3).training
    assert cohort(join_ratio=0.3, client_dropout=0.5).training == usual
    assert cohort(join_ratio=0.3, lr=1.0, batch_norm="personal").training == usual
