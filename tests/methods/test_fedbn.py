import pytest
import torch

from pfl_fast.models import batch_norm_tensors
from tests.engine import small_experiments as small
from tests.methods.compare import COMMON, assert_equals_naive
from tests.methods.naive_fedpick import Federation


@pytest.mark.parametrize("case", COMMON)
def test_two_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedbn", COMMON[case], Federation)


def test_without_batch_norm_it_is_fedavg():
    values = {"join_ratio": 0.6, "momentum": 0.5}
    with small.trained("fedbn", **values) as fedbn, small.trained("fedavg", **values) as fedavg:
        mine, theirs = small.state_of(fedbn), small.state_of(fedavg)
        assert small.untimed_records(fedbn) == small.untimed_records(fedavg)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_batch_norm_never_leaves_a_client():
    with small.trained("fedbn", model=small.with_batch_norm()) as running:
        part_table, state = running.part_table, small.state_of(running)
        local = {f"extractor.{name}" for name in batch_norm_tensors(part_table.client.extractor)}
        assert len(local) == 5
        assert local.isdisjoint(e.key for e in [*part_table.uploaded, *part_table.received])
        for name in local:
            assert torch.equal(state[f"server {name}"], part_table.common[name])
        means = [state[f"client {c} extractor.2.running_mean"] for c in range(running.data.clients)]
        assert not any(torch.equal(means[0], other) for other in means[1:])
