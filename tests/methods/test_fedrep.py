import pytest

from tests.engine import small_experiments as small
from tests.methods.compare import COMMON, assert_equals_naive, assert_same, final, part_of
from tests.methods.naive_personal import FedRep

CASES = {
    **COMMON,
    "one epoch of the head": {"personal_epochs": 1, "local_epochs": 2},
    "two epochs of the head, batch norm": {"personal_epochs": 2, "model": small.with_batch_norm(), "momentum": 0.9},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedrep", CASES[case], FedRep)


def test_heads_are_personal_and_the_extractor_is_shared():
    state = final("fedrep")
    assert {name.split()[1].split(".")[0] for name in state if name.startswith("server")} == {"extractor"}
    heads, extractors = ([part_of(state, part, f"client {i}") for i in range(5)] for part in ("head", "extractor"))
    tuples = [{tuple(t.flatten().tolist()) for t in own.values()} for own in heads]
    assert not set.intersection(*tuples)
    for i, own in enumerate(extractors):
        assert_same(
            {n.replace(f"client {i}", "server"): t for n, t in own.items()}, part_of(state, "extractor", "server")
        )


def test_the_head_is_trained_before_the_extractor():
    with small.trained("fedrep", personal_epochs=3, local_epochs=2) as running:
        phases = running.method.phases(1)
        assert [(phase.train, phase.epochs) for phase in phases] == [(("head",), 3), (("extractor",), 2)]
        assert running.records[0]["samples"] == 5 * sum(small.RAGGED)


def test_more_epochs_of_the_head_lower_the_loss():
    def loss(epochs):
        with small.trained("fedrep", personal_epochs=epochs, rounds=1, join_ratio=1.0) as running:
            return running.records[0]["train_loss"]

    assert loss(20) < loss(4) < loss(1)
