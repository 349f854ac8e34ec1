import pytest
import torch

from tests.engine import small_experiments as small
from tests.methods.compare import (
    LONGER,
    assert_equals_naive,
    assert_same,
    final,
    labelled,
    model_of,
    part_of,
    predictions,
)
from tests.methods.naive_regularised import FedProto

# Nobody has class 2, client 0 only class 0, client 2 only class 1; of the test samples some are of class 2.
PARTLY = {"sizes": (5, 6, 4), "dataset": labelled([0] * 5 + [0, 1] * 3 + [1] * 4 + [0, 1, 2] * 3)}
CASES = {
    **LONGER,
    "plain mean": {"compat": "pfllib", "rounds": 3, "join_ratio": 0.6},
    "own head": {"inference": "head", "rounds": 3, "local_epochs": 2},
    "strong": {"lam": 5.0, "rounds": 3},
    "missing classes": PARTLY,
    "missing classes, plain mean, some lost": {**PARTLY, "compat": "pfllib", "client_dropout": 0.3, "rounds": 3},
    "some clients without prototypes": {"rounds": 1, "join_ratio": 0.4},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("fedproto", CASES[case], FedProto)


def test_models_are_personal_and_with_lam_0_equal_local():
    values = {"rounds": 3, "momentum": 0.9}
    assert_same(model_of(final("fedproto", lam=0, **values)), model_of(final("local", **values)))
    torch.testing.assert_close(predictions("fedproto", lam=0, inference="head"), predictions("local"))


def test_a_larger_lam_brings_features_closer_to_the_prototypes():
    def spread(lam):
        with small.trained("fedproto", lam=lam, rounds=5) as running:
            state, total = small.state_of(running), 0.0
            for i in range(running.data.clients):
                x, y = running.data.take(running.data.indices("train", i))
                z = running.client(i).client.extractor(x)
                total += ((z - state[f"client {i} prototypes.means"][y]) ** 2).mean().item()
            return total

    assert spread(5.0) < 0.5 * spread(0)


@pytest.mark.parametrize("compat", ["paper", "pfllib"])
def test_a_class_without_samples_has_no_prototype_and_is_never_predicted(compat):
    state = final("fedproto", compat=compat, **PARTLY)
    prototypes = part_of(state, "prototypes", "server")
    assert prototypes["server counts"].tolist() == [8, 7, 0]
    assert prototypes["server means"][2].count_nonzero() == 0
    logits = predictions("fedproto", compat=compat, **PARTLY)
    assert torch.isfinite(logits).all()
    torch.testing.assert_close(logits[..., 2], logits[..., :2].min(-1).values - 1)


def test_prototypes_are_weighted_by_counts_except_with_compat_pfllib():
    values = {"sizes": (9, 1), "dataset": labelled([0] * 10 + [0] * 6), "rounds": 1}
    means = [final("fedproto", compat=c, **values)["server prototypes.means"][0] for c in ("paper", "pfllib")]
    assert (means[0] - means[1]).abs().max() > 1e-3
