"""Every executor computes the same tensors and records."""

from functools import cache

import pytest
import torch

from pfl_fast import ops
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small

pytestmark = pytest.mark.usefixtures("one_core")

# float32: sums of a few dozen terms in another order, over a few steps; measured differences are below 1e-6.
TOLERANCES = {"float64": 1e-9, "float32": 2e-5}
EXECUTORS = {
    "threads": {"executor": "threads", "workers": 2},
    "batched": {"executor": "batched"},
    "batched in twos": {"executor": "batched", "stack": 2},
    "two devices": {"executor": "batched", "device": "cpu,cpu"},
}
# Settings by which clients differ in their steps, or steps in their inputs.
CASES = {
    "ragged": {},
    "partial": {"join_ratio": 0.6, "local_epochs": 2, "momentum": 0.9, "weight_decay": 0.01},
    "batch norm": {"model": small.with_batch_norm(), "join_ratio": 0.6},
    "batch norm shared": {"model": small.with_batch_norm(), "batch_norm": "shared", "momentum": 0.5},
    "batch norm personal": {"model": small.with_batch_norm(), "batch_norm": "personal"},
    "dropout": {"model": small.with_dropout(), "local_epochs": 2},
    "momentum kept": {"momentum": 0.9, "keep_momentum": True, "join_ratio": 0.6},
    "client dropout": {"client_dropout": 0.5},
    "all train": {"train_all": True, "join_ratio": 0.4, "client_dropout": 0.5},
    "broadcast to all": {"broadcast_to_all": True, "join_ratio": 0.4, "model": small.with_batch_norm()},
    "random join": {"random_join": True, "join_ratio": 0.2, "eval_initial": True},
    "not shuffled": {"shuffle": False, "drop_last": True, "sizes": (11, 4, 7, 5, 9), "drop_last_test": True},
    "one client": {"sizes": (5,)},
    "equal sizes": {"sizes": (4, 4, 4)},
    "small batches": {"sizes": (3, 1, 2), "batch_size": 8},
    "augmented": {
        "dataset": small.images(60),
        "model": small.convolutional(),
        "augment": "crop-flip",
        "sizes": (6, 3, 5),
    },
    "validation": {"validation": 2, "eval_every": 2, "lr_decay": 0.5},
    "on disk": {"state": "disk", "join_ratio": 0.6},
}


THOROUGH = ("ragged", "partial", "batch norm", "dropout")  # run with all executors; other cases with BRIEF
BRIEF = ("threads", "batched in twos")


def outcome(method, values):
    with small.trained(method, **values) as running:
        return small.state_of(running), small.untimed_records(running)


@cache
def in_sequence(method, case):
    """Results of the sequential executor."""
    return outcome(method, CASES[case])


def assert_same(mine, theirs, dtype="float64", what=""):
    assert small.differences(mine[0], theirs[0], TOLERANCES[dtype]) == {}, what
    small.assert_same_records(mine[1], theirs[1], TOLERANCES[dtype])


REFUSE_PERSONAL = ("centralised", "partialfed-fix", "partialfed-adaptive")  # they average BatchNorm
PAIRS = [(m, c) for m in METHODS for c in CASES if c != "batch norm personal" or m not in REFUSE_PERSONAL]


@pytest.mark.parametrize(("method", "case"), PAIRS)
def test_every_executor_has_the_same_results(method, case):
    for name in EXECUTORS if case in THOROUGH else BRIEF:
        assert_same(outcome(method, {**CASES[case], **EXECUTORS[name]}), in_sequence(method, case), what=name)


@pytest.mark.cuda
@pytest.mark.parametrize("executor", ["threads", "batched"])
@pytest.mark.parametrize("case", ["partial", "batch norm"])
@pytest.mark.parametrize("method", METHODS)
def test_gpus_have_the_results_of_the_cpu(method, case, executor):
    got = outcome(method, {**CASES[case], "executor": executor, "device": "cuda"})
    assert_same(got, in_sequence(method, case))


@pytest.mark.parametrize("case", ["partial", "batch norm", "dropout", "augmented"])
@pytest.mark.parametrize("method", METHODS)
def test_native_and_reference_operators_have_the_same_results(method, case):
    if not ops.uses_native():
        pytest.skip("the native library is not available")
    for executor in ({}, EXECUTORS["batched"]):
        got = outcome(method, {**CASES[case], **executor, "ops": "reference"})
        assert_same(got, in_sequence(method, case), what=str(executor))


@pytest.mark.parametrize("case", ["partial", "batch norm"])
@pytest.mark.parametrize("method", METHODS)
def test_every_executor_has_the_same_results_in_single_precision(method, case):
    values = {**CASES[case], "dtype": "float32"}
    if method == "centralised":  # a round has the steps of all clients, through which rounding errors grow
        values["rounds"] = 1
    expected = outcome(method, values)
    assert {t.dtype for t in expected[0].values() if t.is_floating_point()} == {torch.float32}
    for name in BRIEF:
        assert_same(outcome(method, {**values, **EXECUTORS[name]}), expected, "float32", name)


@pytest.mark.parametrize("method", METHODS)
def test_results_depend_on_training_and_seed(method):
    """Without this the comparisons above would hold for an engine that does nothing."""
    with small.trained(method) as running:
        trained = small.state_of(running)
    untrained = small.experiment(method)
    before = small.state_of(untrained)
    untrained.close()
    assert len(small.differences(trained, before, 1e-6)) >= len(small.RAGGED) * 4
    assert small.differences(trained, outcome(method, {"seed": 1})[0], 1e-6)
