import pytest

from tests.engine import small_experiments as small
from tests.methods.compare import (
    COMMON,
    assert_equals_naive,
    assert_same,
    before_the_final_round,
    distance,
    final,
    initial,
    part_of,
)
from tests.methods.naive_regularised import FedBABU

CASES = {
    **COMMON,
    "the head alone": {"tune": "head", "fine_tuning_epochs": 2, "model": small.with_batch_norm()},
    "the extractor alone": {"tune": "extractor", "fine_tuning_epochs": 2, "join_ratio": 0.6},
    "one epoch": {"fine_tuning_epochs": 1, "lr_decay": 0.5, "momentum": 0.9},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_and_fine_tuning_equal_the_naive_implementation(case):
    assert_equals_naive("fedbabu", CASES[case], FedBABU)


def test_the_head_does_not_change_before_the_fine_tuning():
    start, state = (f("fedbabu", weight_decay=0.1) for f in (initial, before_the_final_round))
    assert_same(part_of(state, "head"), part_of(start, "head"))
    assert distance(part_of(state, "extractor", "server"), part_of(start, "extractor", "server")) > 1e-2


def test_tune_selects_the_fine_tuned_parts():
    start, before = initial("fedbabu"), before_the_final_round("fedbabu")
    for tune, tuned in (("full", {"head", "extractor"}), ("head", {"head"}), ("extractor", {"extractor"})):
        state = final("fedbabu", tune=tune)
        assert_same(part_of(state, "extractor", "server"), part_of(before, "extractor", "server"))
        for part, untouched in (("head", start), ("extractor", before)):
            moved = distance(part_of(state, part, "client"), part_of(untouched, part, "client"))
            assert (moved > 1e-2) == (part in tuned)
            assert (moved == 0) == (part not in tuned)
