"""Operators, methods and options on ghost GPUs: torch's host code for CUDA runs, and so does that of the operators."""

from collections import Counter

import pytest

from pfl_fast import ops
from pfl_fast.methods import METHODS
from tests.device.ghost import build
from tests.ops.operators import operators

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(build.missing() is not None, reason=str(build.missing())),
    pytest.mark.skipif(not ops.NATIVE.available, reason="the native library is not available"),
]


def test_operators_have_the_values_and_gradients_of_the_reference():
    """The kernels are emulated; allocation, streams, devices, autograd and error checks are those of a GPU."""
    result = build.output("contract", gpus=2, values=True)
    assert result["failures"] == []
    compared = Counter(name.partition(", ")[0] for name, number in result["compared"].items() if number)
    assert compared == {op.name: 3 for op in operators()}, "at three places each"
    messages = result["refused"]
    assert messages["two GPUs"].endswith("grads[0] must be on the device of params[0], cuda:0, got cuda:1")
    assert messages["host and GPU"].endswith("grads[0] must be on the device of params[0], cuda:0, got cpu")
    assert messages["launch"].endswith("could not be launched: error of the ghost GPU (cudaError_t 1)")


def test_every_option_of_every_method_trains_on_one_and_on_two_gpus():
    result = build.output("every_option", gpus=2)
    assert result["errors"] == {}
    assert result["warnings"] == []
    assert result["runs"] > 2 * len(METHODS)
