"""CUDA graphs of local steps on a ghost GPU, which refuses waits and host copies inside a capture."""

import pytest

from pfl_fast import ops
from pfl_fast.methods import METHODS
from tests.device.ghost import build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(build.missing() is not None, reason=str(build.missing())),
    pytest.mark.skipif(not ops.NATIVE.available, reason="the native library is not available"),
]


@pytest.fixture(scope="module")
def captured():
    """What :mod:`tests.device.ghost.captures` prints."""
    return build.output("captures")


def test_replayed_steps_have_the_values_of_eager_steps():
    """Clients of different size, with two equally large last batches: their graphs write to different clients."""
    found = build.output("replays", values=True)
    assert {name: case["wrong"] for name, case in found.items() if case["wrong"]} == {}
    assert all(case["replays"] >= 10 for case in found.values())


def test_the_steps_of_every_method_are_captured(captured):
    methods = captured["methods"]
    assert methods.keys() == METHODS.keys()
    assert {name: found for name, found in methods.items() if found["messages"] or found["eager"]} == {}
    assert all(found["graphs"] and found["replays"] for found in methods.values())


def test_graphs_are_used_again_in_later_rounds(captured):
    assert captured["same round"] == {"messages": [], "graphs": 2, "eager": 0, "replays": 9}


@pytest.mark.parametrize("changes", ["anneals", "learning rate"])
def test_other_numbers_are_captured_again(captured, changes):
    assert captured[changes] == {"messages": [], "graphs": 6, "eager": 0, "replays": 9}


@pytest.mark.parametrize("case", ["off", "one by one"])
def test_steps_that_run_eagerly(captured, case):
    assert captured[case] == {"messages": [], "graphs": 0, "eager": 0, "replays": 0}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("host", "Cannot copy between CPU and CUDA tensors during CUDA graph capture"),
        ("other results", "the captured step has other results than the eager step"),
    ],
)
def test_steps_that_cannot_be_captured_run_eagerly_and_say_why(captured, case, message):
    found = captured[case]
    assert found["graphs"] == 0
    assert found["eager"] == 2
    assert all(message in text for text in found["messages"])
    assert found["messages"]


def test_exhausted_memory_ends_the_captures_and_not_the_run(captured):
    found = captured["memory"]
    assert found["messages"] == [
        "steps run eagerly: no memory",
        "steps run eagerly: the memory of the GPU is exhausted",
    ]
    assert found["replays"] == 1
