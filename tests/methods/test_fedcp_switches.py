"""Effects of each option of FedCP, and invariants that hold under all options."""

import pytest
import torch

from pfl_fast import ops
from pfl_fast.engine.sampling import sample
from pfl_fast.errors import ConfigError
from pfl_fast.methods import METHODS
from pfl_fast.methods.base import Batch, RunContext
from pfl_fast.methods.fedcp import FedCP, FedCPOptions
from pfl_fast.models import build
from pfl_fast.testing import same_bits
from tests.engine import small_experiments as small


def after(**values):
    with small.trained("fedcp", **values) as running:
        return small.state_of(running), small.untimed_records(running)


def differing(mine, theirs):
    """Returns the names, without client numbers, of the tensors in both states that differ."""
    common = mine.keys() & theirs.keys()
    return {name.split(" ")[-1] for name in common if not same_bits(mine[name], theirs[name])}


# Equalities.


@pytest.mark.parametrize("values", [{}, {"model": small.with_batch_norm(), "batch_norm": "shared", "join_ratio": 0.6}])
def test_without_policy_frozen_extractor_and_global_head_it_is_fedper_to_the_bit(values):
    mine, records = after(cpn=False, gfm=False, gh=False, **values)
    with small.trained("fedper", **values) as running:
        theirs = small.state_of(running)
        assert small.untimed_records(running) == records
    assert mine.keys() == theirs.keys()
    assert differing(mine, theirs) == set()


def test_lam_0_equals_no_frozen_extractor():
    mine, theirs = after(lam=0)[0], after(gfm=False)[0]
    assert mine.keys() == theirs.keys()
    assert differing(mine, theirs) == set()
    assert not any("global_extractor" in name for name in mine)


def test_a_policy_needs_both_heads():
    for gfm in (True, False):
        with pytest.raises(ConfigError, match="gh=false needs cpn=false"):
            small.experiment("fedcp", gh=False, gfm=gfm)


# Every option changes the result.


@pytest.mark.parametrize(
    "values",
    [
        {"cpn": False},
        {"cpn": False, "without_cpn": "half"},
        {"cpn": False, "gh": False},
        {"gfm": False},
        {"lam": 2.0},
        {"bandwidths": (1.0,)},
        {"cpn_input": "h"},
        {"cpn_input": "v"},
        {"cpn_input": "random"},
        {"cpn_norm": "bn"},
        {"cpn_norm": "gn"},
        {"cpn_act": "tanh"},
        {"cpn_act": "sigmoid"},
        {"policy": "gumbel"},
        {"random_first": True},
    ],
    ids=str,
)
def test_every_option_changes_the_result(values):
    assert "extractor.1.weight" in differing(after(**values)[0], after()[0])


def test_full_and_half_features_give_different_results():
    assert differing(after(cpn=False)[0], after(cpn=False, without_cpn="half")[0])


@pytest.mark.parametrize("model", [small.plain(), small.with_batch_norm()])
def test_evaluation_mode_of_the_frozen_extractor_matters_only_with_batch_norm(model):
    has_batch_norm = any(isinstance(m, torch.nn.BatchNorm1d) for m in model.modules())
    mine, theirs = after(model=model, frozen_eval=True)[0], after(model=model)[0]
    assert bool(differing(mine, theirs)) == has_batch_norm
    tracked = [value for name, value in mine.items() if name.endswith("global_extractor.2.num_batches_tracked")]
    assert all(count == 0 for count in tracked), "its statistics do not change"
    tracked = [value for name, value in theirs.items() if name.endswith("global_extractor.2.num_batches_tracked")]
    assert all(count > 0 for count in tracked), "its statistics are updated in training mode"


# Sizes.


@pytest.mark.parametrize(
    ("model", "depth", "count"),
    [("cnn", 1, 527_360), ("cnn", 2, 790_016), ("cnn", 3, 1_052_672), ("cnn", 4, 1_315_328), ("fasttext", 1, 2_240)],
)
def test_parameters_of_the_policy(model, depth, count):
    shape, vocabulary = ((200,), 50) if model == "fasttext" else ((1, 28, 28), 0)
    backbone = build(model, input_shape=shape, classes=4, vocabulary=vocabulary)
    parts = FedCP(FedCPOptions(cpn_depth=depth), RunContext(1, 1, 1, 4)).parts(backbone)
    assert sum(p.numel() for p in parts["cpn"].module.parameters()) == count


# The context.


def context_from_head(state, client):
    v = state[f"client {client} head.weight"].sum(0)
    return v / v.norm()


def test_the_context_is_computed_from_the_head():
    state = after(join_ratio=0.6)[0]
    for client in range(5):
        torch.testing.assert_close(state[f"client {client} context.vector"], context_from_head(state, client))


def test_random_first_uses_a_random_context_until_the_first_receive():
    running = small.experiment("fedcp", random_first=True, join_ratio=0.4, rounds=3)
    seen = set()
    before = small.state_of(running)
    vectors = [before[f"client {c} context.vector"] for c in range(5)]
    assert len({tuple(v.tolist()) for v in vectors}) == 5
    assert all(v.norm() == pytest.approx(1) and (v >= 0).all() for v in vectors)
    for record in running.rounds():
        seen |= set(sample(running.settings, 5, record["round"]).training)
        state = small.state_of(running)
        for client in range(5):
            mine = state[f"client {client} context.vector"]
            if client in seen:
                torch.testing.assert_close(mine, context_from_head(state, client))
            else:
                assert same_bits(mine, vectors[client])
    assert 0 < len(seen) < 5
    running.close()


def test_a_random_context_does_not_change():
    running = small.experiment("fedcp", cpn_input="random")
    before = small.state_of(running)
    running.run()
    state = small.state_of(running)
    for client in range(5):
        name = f"client {client} context.vector"
        assert same_bits(state[name], before[name])
        assert ((state[name] >= 0) & (state[name] < 1)).all()
    running.close()


# Recipients of each part.


@pytest.mark.parametrize("to_all", [True, False])
def test_only_the_extractor_can_be_sent_to_all_clients(to_all):
    running = small.experiment("fedcp", extractor_to_all=to_all, join_ratio=0.4, rounds=1)
    before = small.state_of(running)
    running.run()
    state = small.state_of(running)
    left_out = sorted(set(range(5)) - set(sample(running.settings, 5, 1).training))
    assert len(left_out) == 3
    for client in left_out:
        mine = {n.split(" ")[-1]: v for n, v in state.items() if n.startswith(f"client {client} ")}
        old = {n.split(" ")[-1]: v for n, v in before.items() if n.startswith(f"client {client} ")}
        changed = {n.split(".")[0] for n in mine if not same_bits(mine[n], old[n])}
        assert changed == ({"extractor", "global_extractor"} if to_all else set())
        if to_all:
            assert same_bits(mine["extractor.1.weight"], state["server extractor.1.weight"])
    running.close()


# Noise in tests.


def test_gumbel_at_eval_adds_reproducible_noise_to_tests():
    values = {"policy": "gumbel", "tests": 29}
    (quiet, without), (noisy, first), (_, again) = (
        after(**values),
        after(gumbel_at_eval=True, **values),
        after(gumbel_at_eval=True, **values),
    )
    assert differing(quiet, noisy) == set(), "testing does not change training"
    assert first == again
    assert [r["test_loss_after_agg"] for r in first] != [r["test_loss_after_agg"] for r in without]


def test_gumbel_at_eval_has_no_effect_on_a_softmax_policy():
    assert after(gumbel_at_eval=True)[1] == after()[1]


def test_values_of_the_preset_official():
    running = small.experiment("fedcp", preset="official", batch_size=3)
    options, settings = running.options, running.settings
    assert (options.policy, options.gumbel_at_eval, options.random_first) == ("gumbel", True, True)
    assert (settings.shuffle, settings.drop_last, settings.drop_last_test) == (False, True, True)
    assert running.part_table.batch_norm == "params_shared_buffers_local"
    assert not options.frozen_eval
    assert options.extractor_to_all
    recipients = {name: part.recipients for name, part in running.part_table.parts.items()}
    assert {n for n, r in recipients.items() if r == "all"} == {"extractor", "global_extractor"}
    assert settings.eval_initial, "their evaluation 0 is of the untrained model"
    running.close()


# Invariants.


def trained(**values):
    """Returns a client's tensors before and after local training, and the experiment."""
    running = small.experiment("fedcp", **values)
    run = running.round
    before = {name: value.clone() for name, value in run.state.clients.view(0, run.state.server).items()}
    mine = {name: value.clone() for name, value in small.train_locally(running, 0, before).items()}
    running.close()
    return before, mine, running


@pytest.mark.parametrize("values", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"policy": "gumbel"}], ids=str)
def test_local_training_does_not_change_the_global_parts(values):
    before, mine, running = trained(**values)
    changed = {name.split(".")[0] for name in mine if not same_bits(mine[name], before[name])}
    assert changed - {"momentum"} == {"extractor", "head", "cpn"}
    upload = running.method.upload(mine)
    for name in ("weight", "bias"):
        expected = (before[f"global_head.{name}"] + mine[f"head.{name}"]) / 2
        assert torch.equal(upload[f"head.{name}"], expected)
    assert set(upload) == {"head.weight", "head.bias"}


def test_aggregation_does_not_change_personal_heads(monkeypatch):
    running = small.experiment("fedcp", rounds=1)
    kept = {}
    aggregate = running.round.aggregate

    def look(cohort, number):
        kept.update({c: running.round.state.clients.row(c)["head.weight"].clone() for c in cohort.training})
        return aggregate(cohort, number)

    monkeypatch.setattr(running.round, "aggregate", look)
    running.run()
    state = small.state_of(running)
    assert len(kept) == 5
    for client, weight in kept.items():
        assert same_bits(state[f"client {client} head.weight"], weight)
        assert same_bits(state[f"client {client} global_head.weight"], state["server head.weight"])
    running.close()


@pytest.mark.parametrize("values", [{}, {"cpn_norm": "gn", "cpn_act": "tanh"}, {"policy": "gumbel"}], ids=str)
def test_shares_add_up_to_one(values):
    running = small.experiment("fedcp", **values)
    client = running.part_table.new_client(torch.device("cpu")).train()
    h = torch.randn(7, 5, dtype=torch.float64)
    seed = torch.tensor(3) if running.options.policy == "gumbel" else None
    r, s = client.cpn(torch.ones_like(h), h, seed)
    torch.testing.assert_close(r + s, torch.ones_like(h))
    assert ((r > 0) & (r < 1)).all()
    running.close()


def test_mmd_of_equal_features_is_zero_and_the_frozen_extractor_has_no_gradient():
    h = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    other = torch.randn(6, 5, dtype=torch.float64)
    assert ops.mmd_rbf(h, h.detach(), (10.0, 50.0)).item() == pytest.approx(0, abs=1e-12)
    there, back = ops.mmd_rbf(h, other, (10.0, 50.0)), ops.mmd_rbf(other, h, (10.0, 50.0))
    assert there.item() == pytest.approx(back.item())
    assert there.item() > 0
    running = small.experiment("fedcp")
    client = running.part_table.new_client(torch.device("cpu")).train()
    x, y, _ = next(iter(running.data.batches(0, 1, 0)))
    (phase,) = running.method.phases(1)
    with torch.no_grad():
        once = {name: once.compute(client, x) + 1 for name, once in phase.cached.items()}
    loss, recorded = phase.loss(client, Batch(x, y, torch.tensor(0), once))
    loss.backward()
    without = {name for name, p in client.named_parameters() if p.grad is None}
    assert without == {n for n, _ in client.named_parameters() if n.startswith("global_extractor.")}
    assert not recorded["pir"].requires_grad
    running.close()


def test_phases_train_only_trainable_parts():
    for name, kind in METHODS.items():
        running = small.experiment(name)
        assert isinstance(running.method, kind)
        for phase in running.method.phases(1):
            assert all(running.part_table.parts[part].trained for part in phase.train)
        running.close()
