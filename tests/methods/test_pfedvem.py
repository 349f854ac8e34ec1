import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from tests.engine import small_experiments as small
from tests.methods.compare import COMMON, assert_equals_naive, assert_same, distance, final, initial, part_of
from tests.methods.naive_servers import PFedVEM

SHORT = {"head_epochs": 3, "draws": 2}
CASES = {
    **COMMON,
    "one sampled head": {"draws": 1, "head_epochs": 4},
    "heads that learn fast": {"head_lr": 0.05, "head_momentum": 0.5, **SHORT},
    "from the model's head": {"init": "backbone", "rounds": 3, **SHORT},
    "only the selected train": {"train_all": False, "broadcast_to_all": False, "join_ratio": 0.6, **SHORT},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("pfedvem", {**SHORT, **CASES[case]}, PFedVEM)


def test_all_clients_train_and_the_selected_ones_are_averaged():
    with small.trained("pfedvem", join_ratio=0.4, **SHORT) as running:
        assert running.records[0]["clients_trained"] == 5
        state = small.state_of(running)
    heads = [state[f"client {i} head.weight"] for i in range(5)]
    assert not any(torch.equal(heads[0], other) for other in heads[1:])


def test_the_head_phase_trains_mean_and_spread():
    start, state = (f("pfedvem", head_lr=0, rounds=1, **SHORT) for f in (initial, final))
    for part in ("head", "spread"):
        assert_same(part_of(state, part, "client"), part_of(start, part, "client"))
    assert distance(part_of(state, "extractor", "client"), part_of(start, "extractor", "client")) > 1e-3
    state = final("pfedvem", lr=0, rounds=1, **SHORT)
    assert_same(part_of(state, "extractor", "client"), part_of(start, "extractor", "client"), 1e-12)
    for part in ("head", "spread"):
        assert distance(part_of(state, part, "client"), part_of(start, part, "client")) > 1e-3


def test_the_server_weights_heads_by_inverse_variance():
    state = final("pfedvem", rounds=1, join_ratio=1.0, head_lr=0.01, **SHORT)
    shares = torch.tensor([1 / state[f"client {i} variance.value"].item() for i in range(5)]).double()
    for name in ("weight", "bias"):
        heads = torch.stack([state[f"client {i} head.{name}"] for i in range(5)])
        mean = torch.einsum("i...,i->...", heads, shares / shares.sum())
        torch.testing.assert_close(state[f"server head.{name}"], mean, rtol=1e-6, atol=1e-6)


def test_the_variance_equals_the_formula():
    start, state = (f("pfedvem", rounds=1, head_lr=0, **SHORT) for f in (initial, final))
    spread = torch.cat([F.softplus(t).flatten() for t in part_of(start, "spread", "client 0").values()])
    difference = distance(part_of(start, "head", "client 0"), part_of(start, "prior", "client 0"))
    expected = ((spread**2).sum() + difference**2) / spread.numel()
    torch.testing.assert_close(state["client 0 variance.value"], expected)


def test_a_client_predicts_with_the_mean_head():
    with small.trained("pfedvem", **SHORT) as running:
        x, _ = running.data.take(running.data.union("test"))
        model = running.client(1)
        torch.testing.assert_close(model(x), model.client.head(model.client.extractor(x)))


def test_init_selects_the_initial_heads():
    backbone = initial("pfedvem", init="backbone")
    assert torch.equal(backbone["server head.weight"], small.plain().head.weight.double())
    normal = initial("pfedvem", init="normal")
    assert normal["server head.weight"].abs().max() > 1 > backbone["server head.weight"].abs().max()
