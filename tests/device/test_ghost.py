"""Rounds on ghost GPUs: torch's host code for CUDA runs, kernels are counted."""

import json
import subprocess
import sys

import pytest
import torch

from pfl_fast import ops
from tests.device.ghost import budget, build

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(build.missing() is not None, reason=str(build.missing())),
    pytest.mark.skipif(not ops.NATIVE.available, reason="the native library is not available"),
]
GROWTH = 1.05


@pytest.mark.parametrize("method", budget.METHODS)
def test_rounds_stay_within_the_budget(method):
    recorded = json.loads(budget.FILE.read_text())
    if recorded["torch"] != torch.__version__:
        pytest.skip(f"the budget is of torch {recorded['torch']}, whose launches differ from those of other versions")
    allowed, counted = recorded[method], budget.count(method)
    grown = {
        f"{name} per {unit}": (value, allowed[unit][name])
        for unit, values in counted.items()
        for name, value in values.items()
        if value > GROWTH * allowed[unit][name]
    }
    assert not grown, "grown by more than 5 %; if that is meant: python -m tests.device.ghost.budget"
    assert counted["step"]["launches"] > 0


def test_two_gpus_share_the_clients():
    one, two = (budget.run(gpus, method="fedcp", clients=6, steps=2) for gpus in (1, 2))
    assert one["devices"] == ["cuda:0"]
    assert two["devices"] == ["cuda:0", "cuda:1"]
    assert two["figures"]["launches"] > one["figures"]["launches"]


def test_training_without_cuda_kernels_runs_references_and_says_it_once():
    result = budget.run(method="fedcp", clients=3, steps=2, kernels=False)
    texts = [text for text in result["warnings"] if "native kernel" in text]
    assert len(texts) == 1
    assert "pfl_fast::take_normalized has no native kernel for cuda tensors" in texts[0]
    native = budget.run(method="fedcp", clients=3, steps=2)
    assert not [text for text in native["warnings"] if "native kernel" in text]
    assert result["figures"]["launches"] > native["figures"]["launches"]


def test_values_read_from_a_ghost_are_zero():
    """So no count depends on a value."""
    program = (
        "import torch\n"
        "x = torch.ones(3, device='cuda')\n"
        "with torch.cuda.stream(torch.cuda.Stream()):\n"
        "    y = x @ x\n"
        "torch.cuda.synchronize()\n"
        "print(torch.cuda.get_device_name(0), y.item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=build.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "Ghost of an A100 0.0\n"
