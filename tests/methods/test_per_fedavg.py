import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.func import functional_call

from tests.engine import small_experiments as small
from tests.methods.compare import (
    COMMON,
    assert_equals_naive,
    assert_same,
    distance,
    final,
    initial,
    model_of,
    predictions,
)
from tests.methods.naive_personal import PerFedAvg

CASES = {
    **COMMON,
    "own alpha": {"alpha": 0.5, "join_ratio": 0.6},
    "hessian-free": {"hessian": "hessian-free", "local_epochs": 2, "momentum": 0.5},
    "hessian-free, batch norm": {"hessian": "hessian-free", "model": small.with_batch_norm(), "alpha": 0.3},
    "wide difference": {"hessian": "hessian-free", "delta": 0.1},
    "twice the epochs": {"compat": "pfllib", "local_epochs": 2, "lr_decay": 0.5},
    "larger batches": {"batch_size": 7},
    "hardly any samples": {"sizes": (1, 2, 3, 5), "hessian": "hessian-free"},
    "hardly any samples, batch norm": {"sizes": (2, 3, 5), "model": small.with_batch_norm()},
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_the_naive_implementation(case):
    assert_equals_naive("per-fedavg", CASES[case], PerFedAvg)


def test_with_alpha_0_and_undivided_batches_the_server_equals_fedavg():
    values = {"batch_size": 3, "momentum": 0.9, "join_ratio": 0.6}
    mine, theirs = (final(m, **v, **values) for m, v in (("per-fedavg", {"alpha": 0}), ("fedavg", {})))
    assert_same(model_of(mine, owner="server"), model_of(theirs, owner="server"), 1e-12)


def test_hessian_free_is_the_gradient_of_the_loss_after_a_step():
    """One batch of one client, compared with autograd through the inner step."""
    values = {"sizes": (4,), "rounds": 1, "alpha": 0.4, "lr": 0.1}
    running = small.experiment("per-fedavg", **values)
    (batch,) = running.data.batches(0, 1, 0)
    model = small.plain().double()
    running.close()

    def loss(parameters, samples):
        return F.cross_entropy(functional_call(model, parameters, batch[0][samples]), batch[1][samples])

    w = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    inner = torch.autograd.grad(loss(w, slice(2)), list(w.values()), create_graph=True)
    stepped = {name: p - 0.4 * g for (name, p), g in zip(w.items(), inner, strict=True)}
    gradients = dict(zip(w, torch.autograd.grad(loss(stepped, slice(2, 4)), list(w.values())), strict=True))
    found = {h: final("per-fedavg", hessian=h, **values) for h in ("hessian-free", "first-order")}
    error = dict.fromkeys(found, 0.0)
    for h, state in found.items():
        for name, p in w.items():
            error[h] += (state[f"server {name}"] - (p - 0.1 * gradients[name])).abs().max().item()
    assert error["hessian-free"] < 1e-6
    assert error["first-order"] > 1e-3


def test_a_model_takes_one_step_before_it_predicts():
    values = {"lr": 0.3}
    with small.trained("per-fedavg", **values) as running:
        x, y, _ = next(iter(running.data.batches(0, 3, 0)))
        server = small.plain().double()
        state = {name.removeprefix("server "): t for name, t in small.state_of(running).items() if "server" in name}
        server.load_state_dict(state)
        before = F.cross_entropy(server(x), y)
        assert F.cross_entropy(running.client(0)(x), y) < before - 1e-3
    assert not torch.allclose(*predictions("per-fedavg", **values)[:2]), "each client on its own samples"


def test_compat_pfllib_doubles_the_epochs():
    with small.trained("per-fedavg", compat="pfllib") as twice, small.trained("per-fedavg") as once:
        assert twice.records[0]["samples"] == 2 * once.records[0]["samples"]
    theirs = final("per-fedavg", local_epochs=2)
    assert_same(model_of(final("per-fedavg", compat="pfllib")), model_of(theirs))


def test_the_adaptation_before_a_test_is_discarded():
    state = final("per-fedavg", rounds=1, lr=0)
    assert_same(model_of(state), model_of(initial("per-fedavg")), 1e-12)
    assert distance(model_of(final("per-fedavg", rounds=1)), model_of(state)) > 1e-3
