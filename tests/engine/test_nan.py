"""Handling of clients whose training gives NaN or infinity."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pfl_fast.engine.client_work import NotFinite
from pfl_fast.engine.local.trainer import first_not_finite
from pfl_fast.experiment import Experiment
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

SIZES = (6, 9, 5, 7)
BAD = len(SIZES) - 1  # the last client: without it, the other clients keep their numbers and random draws
EXECUTORS = {
    "sequential": {"executor": "sequential"},
    "threads": {"executor": "threads", "workers": 2},
    "batched": {"executor": "batched"},
}


def large(count):
    """Data for which any step with a learning rate of 1e308 gives infinity."""
    dataset = small.features(count)
    return replace(dataset, x=dataset.x * 1000)


def with_nan(at=0):
    """Data in which training sample ``at`` of client ``BAD`` is NaN."""
    dataset = small.features(sum(SIZES) + 3 * len(SIZES))
    dataset.x[sum(SIZES[:BAD]) + at] = np.nan  # later than the check of a new data set
    return dataset


@pytest.mark.parametrize("executor", EXECUTORS)
def test_stop_names_round_client_and_step(executor):
    values = {"dataset": with_nan(at=5), "shuffle": False, **EXECUTORS[executor]}
    running = small.experiment("fedavg", SIZES, **values)
    with pytest.raises(NotFinite, match=r"round 1, client 3: the loss of step 2 is n.*on_nan=.skip"):
        running.run()
    assert running.round.state.rounds_done == 0
    running.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_stop_names_parameters_that_are_not_finite(executor):
    """The loss of the last step is finite, the updated weights are not."""
    running = small.experiment("fedavg", (4, 4), dataset=large(14), lr=1e308, **EXECUTORS[executor])
    with pytest.raises(NotFinite, match=r"round 1, client \d: .*(weight|bias) holds values .* after step 1"):
        running.run()
    running.close()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "centralised"])  # its data is pooled
def test_skip_equals_a_run_without_the_client(method, executor):
    with small.trained(method, sizes=SIZES, dataset=with_nan(), on_nan="skip", **EXECUTORS[executor]) as running:
        mine, records = small.state_of(running), small.untimed_records(running)
    partition = small.partition_of(SIZES)
    others = replace(partition, **{s: getattr(partition, s)[:BAD] for s in ("train", "test", "validation")})
    alone = Experiment(
        method,
        dataset=with_nan(),
        model=small.plain(),
        partition=others,
        **{**small.METHOD_SETTINGS.get(method, {}), "rounds": 2, "batch_size": 4, "lr": 0.1, "dtype": "float64"},
        executor="sequential",
    )
    # Some methods divide by the number of all clients, skipped ones included.
    alone.method.context = replace(alone.method.context, clients=len(SIZES))
    alone.run()
    theirs = small.state_of(alone)
    # Tables over clients have one more row and column.
    mine = {name: mine[name][tuple(slice(n) for n in tensor.shape)] for name, tensor in theirs.items()}
    assert small.differences(mine, theirs, 1e-9) == {}
    for record, expected in zip(records, small.untimed_records(alone), strict=True):
        assert record["skipped"] == [BAD]
        for name in ("train_loss", "samples", "test_accuracy_after_local"):
            assert record[name] == pytest.approx(expected[name]), name
    alone.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_skipped_client_keeps_its_personal_tensors(method):
    values = {"sizes": SIZES, "dataset": with_nan(), "on_nan": "skip", "momentum": 0.5, "keep_momentum": True}
    untrained = small.experiment(method, **values)
    own = [entry.key for entry in untrained.part_table.stored if entry.receive_from is None]
    before = untrained.round.state.clients.row(BAD)
    with small.trained(method, **values) as running:
        after = running.round.state.clients.row(BAD)
        assert all(torch.isfinite(t).all() for t in small.state_of(running).values())
        assert small.differences({n: after[n] for n in own}, {n: before[n] for n in own}, 0) == {}
    untrained.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_server_does_not_change_if_all_clients_are_skipped(executor):
    values = {"on_nan": "skip", "lr": 1e308, "dataset": large(49), **EXECUTORS[executor]}
    with small.trained("fedavg", **values) as running:
        assert [r["skipped"] for r in running.records] == [list(range(len(small.RAGGED)))] * 2
        assert [r["train_loss"] for r in running.records] == [None, None]
        assert small.differences(running.round.state.server, running.part_table.new_server(), 0) == {}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_report_continues_and_lists_the_clients(executor):
    with small.trained("local", sizes=SIZES, dataset=with_nan(), on_nan="report", **EXECUTORS[executor]) as running:
        assert [r["not_finite"] for r in running.records] == [[BAD]] * 2
        assert [r["skipped"] for r in running.records] == [[]] * 2
        assert [r["train_loss"] for r in running.records] == [None] * 2
        assert json.dumps(running.records, allow_nan=False)
        state = small.state_of(running)
        assert torch.isnan(state[f"client {BAD} head.weight"]).all()
        assert torch.isfinite(state["client 0 head.weight"]).all()


def test_large_numbers_whose_sum_overflows_are_finite():
    largest = torch.full((4,), torch.finfo(torch.float32).max)
    assert not math.isfinite(largest.sum())
    spoiled = {"fine": largest, "bad": torch.tensor([0.0, math.inf, -math.inf])}
    assert first_not_finite(spoiled, ["fine"], 1) is None
    assert first_not_finite(spoiled, ["fine", "bad"], 7) == "bad holds values that are not finite after step 7"
