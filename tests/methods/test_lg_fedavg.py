import pytest

from tests.engine import small_experiments as small
from tests.methods.compare import COMMON, assert_equals_naive, assert_same, final, model_of, part_of
from tests.methods.naive_personal import LGFedAvg

CASES = {
    **COMMON,
    "one round of warm-up": {"warmup": 1, "rounds": 3, "join_ratio": 0.6},
    "only warm-up": {"warmup": 5, "join_ratio": 0.6, "momentum": 0.5},
    "warm-up, batch norm": {"warmup": 1, "rounds": 3, "model": small.with_batch_norm(), "client_dropout": 0.4},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("lg-fedavg", CASES[case], LGFedAvg)


def test_with_warm_up_in_every_round_it_is_fedavg():
    values = {"momentum": 0.9, "model": small.with_batch_norm()}
    assert_same(model_of(final("lg-fedavg", warmup=2, **values)), model_of(final("fedavg", **values)))


def test_a_single_client_equals_local():
    values = {"sizes": (9,), "momentum": 0.9}
    assert_same(model_of(final("lg-fedavg", **values)), model_of(final("local", **values)), 1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_after_the_warm_up_heads_are_shared_and_extractors_personal(warmup):
    state = final("lg-fedavg", warmup=warmup)
    for part, count in (("head", 1), ("extractor", 1 if warmup == 2 else 5)):
        for name in part_of(state, part, "client 0"):
            key = f"{part}.{name.removeprefix('client 0 ')}"
            assert len({tuple(state[f"client {i} {key}"].flatten().tolist()) for i in range(5)}) == count


def test_extractors_are_uploaded_only_in_the_warm_up():
    with small.trained("lg-fedavg", warmup=1) as running:
        first, second = (record["uploaded_values"] for record in running.records)
    assert first > second > 0
