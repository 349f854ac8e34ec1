"""Comparisons of an experiment with the naive implementation, or with another experiment."""

from dataclasses import replace

import numpy as np
import torch

from pfl_fast.data.federated import FederatedData
from tests.engine import small_experiments as small
from tests.methods.naive import Federation

# Settings under which all methods are compared.
COMMON = {
    "plain": {},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 0.05},
    "some clients, two epochs": {"join_ratio": 0.6, "local_epochs": 2},
    "batch norm": {"model": small.with_batch_norm(), "join_ratio": 0.6},
    "batch norm shared": {"model": small.with_batch_norm(), "batch_norm": "shared"},
    "batch norm personal": {"model": small.with_batch_norm(), "batch_norm": "personal", "momentum": 0.5},
    "falling learning rate, lost clients": {"lr_decay": 0.5, "client_dropout": 0.4},
    "all train, some are averaged": {"train_all": True, "join_ratio": 0.4, "momentum": 0.5},
    "sent to all": {"broadcast_to_all": True, "join_ratio": 0.4, "model": small.with_batch_norm()},
}
TOLERANCE = 1e-10  # of values in float64 that two orders of summation give
# For methods with state that acts from the third round on.
LONGER = {case: {"rounds": 3, **values} for case, values in COMMON.items()}


def assert_equals_naive(method, values, federation=Federation):
    """Asserts that all tensors, losses and predictions are equal to ``TOLERANCE`` in float64."""
    untrained = small.experiment(method, **values, device="cpu")
    assert isinstance(untrained.data, FederatedData)
    expected = federation(method, untrained).rounds()
    with small.trained(method, **values) as running:
        mine, theirs = small.state_of(running), expected.tensors()
        not_compared = (" momentum.", *(f" {name}" for name in expected.not_compared))
        own = {name for name in mine if not any(part in name for part in not_compared)}
        # With an ablation the package has fewer modules than the naive client, which does not use the others.
        assert own - theirs.keys() == set()
        for name in sorted(own):
            torch.testing.assert_close(
                mine[name], theirs[name], rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m, n=name: f"{n}: {m}"
            )
        x, _ = running.data.take(running.data.union("test"))
        for client in range(running.data.clients):
            torch.testing.assert_close(
                running.client(client)(x), expected.predict(client, x), rtol=TOLERANCE, atol=TOLERANCE
            )
        if not expected.compares_losses:
            return running, expected
        losses = [pair for client in expected.clients for pair in client.losses]
        recorded = sum(r["train_loss"] * r["samples"] for r in running.records if r["round"])
        torch.testing.assert_close(recorded, sum(n * loss for n, loss in losses), rtol=TOLERANCE, atol=TOLERANCE)
        return running, expected


def final(method, **values):
    """Returns all tensors after all rounds."""
    with small.trained(method, **values) as running:
        return small.state_of(running)


def before_the_final_round(method, **values):
    """Returns all tensors after the last round, before the final fine-tuning."""
    running = small.experiment(method, **values)
    try:
        for record in running.rounds():
            if record["round"] == running.settings.rounds:
                return small.state_of(running)
    finally:
        running.close()


def initial(method, **values):
    """Returns all tensors before the first round."""
    untrained = small.experiment(method, **values, device="cpu")
    try:
        return small.state_of(untrained)
    finally:
        untrained.close()


def predictions(method, **values):
    """Returns ``[clients, samples, classes]`` logits of every client's model on the test samples of all clients."""
    with small.trained(method, **values) as running:
        x, _ = running.data.take(running.data.union("test"))
        return torch.stack([running.client(client)(x) for client in range(running.data.clients)]).detach()


def part_of(state, part, owner=""):
    """Returns the tensors of a part, by owner and name; of the server and all clients, or of one owner."""
    middle = f" {part}."
    return {name.replace(middle, " "): t for name, t in state.items() if middle in name and name.startswith(owner)}


def model_of(state, prefix="", owner="client"):
    """Returns the tensors of ``<prefix>extractor`` and ``<prefix>head`` of all clients or of one owner."""
    found = {}
    for part in ("extractor", "head"):
        found.update({f"{part} {name}": t for name, t in part_of(state, prefix + part, owner).items()})
    assert found
    return found


def distance(mine, theirs):
    """Returns the Euclidean distance of all tensors together."""
    assert mine.keys() == theirs.keys()
    return torch.sqrt(sum(((mine[name] - theirs[name]).double() ** 2).sum() for name in mine)).item()


def assert_same(mine, theirs, tolerance=0.0):
    """Asserts that tensors are equal, by default to the bit."""
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(
            value, theirs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def labelled(labels):
    """Returns features with these labels: of the training samples of all clients, then of their test samples."""
    return replace(small.features(len(labels)), y=np.array(labels, dtype=np.int64))
