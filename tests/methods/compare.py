"""Two rounds of an experiment against two rounds of the naive federation."""

import torch

from pfl_fast.data.federated import FederatedData
from tests.engine import toys
from tests.methods.naive import Federation

# What all methods are compared under.
COMMON = {
    "plain": {},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 0.05},
    "some clients, two epochs": {"join_ratio": 0.6, "local_epochs": 2},
    "batch norm": {"model": toys.with_batch_norm(), "join_ratio": 0.6},
    "batch norm shared": {"model": toys.with_batch_norm(), "batch_norm": "shared"},
    "batch norm personal": {"model": toys.with_batch_norm(), "batch_norm": "personal", "momentum": 0.5},
    "falling learning rate, lost clients": {"lr_decay": 0.5, "client_dropout": 0.4},
}


def assert_equals_naive(method, values, federation=Federation):
    """Every tensor of the server and the clients, the losses and what the clients predict, to 1e-6 in float64."""
    untrained = toys.experiment(method, **values)
    assert isinstance(untrained.data, FederatedData)
    expected = federation(method, untrained).rounds()
    with toys.ran(method, **values) as running:
        mine, theirs = toys.state_of(running), expected.tensors()
        hidden = (" momentum.", *(f" {name}" for name in expected.hidden))
        own = {name for name in mine if not any(part in name for part in hidden)}
        # An ablation has fewer modules than the naive client, whose others are not used then.
        assert own <= theirs.keys()
        for name in sorted(own):
            torch.testing.assert_close(
                mine[name], theirs[name], rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
            )
        x, _ = running.data.take(running.data.union("test"))
        for client in range(running.data.clients):
            torch.testing.assert_close(running.client(client)(x), expected.predict(client, x), rtol=1e-6, atol=1e-6)
        if not expected.records:
            return running, expected
        losses = [pair for client in expected.clients for pair in client.losses]
        recorded = sum(r["train_loss"] * r["samples"] for r in running.records if r["round"])
        torch.testing.assert_close(recorded, sum(n * loss for n, loss in losses), rtol=1e-6, atol=1e-6)
        return running, expected
