"""A few rounds of an experiment against those of the naive federation, or of another experiment."""

from dataclasses import replace

import numpy as np
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
    "all train, some are averaged": {"train_all": True, "join_ratio": 0.4, "momentum": 0.5},
    "sent to all": {"broadcast_to_all": True, "join_ratio": 0.4, "model": toys.with_batch_norm()},
}
# For methods whose third round depends on the first.
LONGER = {case: {"rounds": 3, **values} for case, values in COMMON.items()}


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
        assert own - theirs.keys() == set()
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


def final(method, **values):
    """Every tensor after all rounds."""
    with toys.ran(method, **values) as running:
        return toys.state_of(running)


def before_the_final_round(method, **values):
    """Every tensor after the last round, before clients train alone."""
    running = toys.experiment(method, **values)
    try:
        for record in running.rounds():
            if record["round"] == running.settings.rounds:
                return toys.state_of(running)
    finally:
        running.close()


def initial(method, **values):
    """Every tensor before the first round."""
    untrained = toys.experiment(method, **values)
    try:
        return toys.state_of(untrained)
    finally:
        untrained.close()


def predictions(method, **values):
    """``[clients, samples, classes]``: what every client's model says about everybody's test samples."""
    with toys.ran(method, **values) as running:
        x, _ = running.data.take(running.data.union("test"))
        return torch.stack([running.client(client)(x) for client in range(running.data.clients)]).detach()


def part_of(state, part, owner=""):
    """The tensors of a part, by owner and name inside it; of the server and all clients, or of one owner."""
    middle = f" {part}."
    return {name.replace(middle, " "): t for name, t in state.items() if middle in name and name.startswith(owner)}


def model_of(state, before="", owner="client"):
    """Extractors and heads, or others whose names begin with ``before``, of all clients or of one owner."""
    found = {}
    for part in ("extractor", "head"):
        found.update({f"{part} {name}": t for name, t in part_of(state, before + part, owner).items()})
    assert found
    return found


def distance(mine, theirs):
    """Of everything together."""
    assert mine.keys() == theirs.keys()
    return torch.sqrt(sum(((mine[name] - theirs[name]).double() ** 2).sum() for name in mine)).item()


def assert_same(mine, theirs, tolerance=0.0):
    """To the bit, unless the arithmetic is another."""
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(
            value, theirs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def labelled(labels):
    """Features with these labels; with ``toys.partition_of``'s clients: of all training samples, then of all tests."""
    return replace(toys.features(len(labels)), y=np.array(labels, dtype=np.int64))
