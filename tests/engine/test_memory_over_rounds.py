"""Memory does not grow over rounds."""

import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pfl_fast.engine.memory import resident
from pfl_fast.models import Backbone
from tests.engine import small_experiments as small

ROUNDS, FIRST = 300, 100  # rounds before FIRST warm up
WIDTH = 4096

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(resident() == 0, reason="the system does not report the memory of a process"),
]


def wide():
    """Model of 160 KiB: quick to train, and large enough to notice one more copy in every round."""
    return Backbone(nn.Sequential(nn.Flatten(), nn.Linear(6, WIDTH), nn.ReLU()), nn.Linear(WIDTH, small.CLASSES), WIDTH)


def copies_per_round(executor, leak=False):
    """Growth of memory per round, in copies of a client's model; ``leak`` keeps one copy per round on purpose."""
    torch.set_num_threads(1)
    kept = []
    workers = 2 if executor == "threads" else 0
    values = {"model": wide(), "dtype": "float32", "rounds": ROUNDS, "lr": 0.001, "eval_every": 10}
    experiment = small.experiment("fedper", executor=executor, workers=workers, **values)
    seen = []
    for _ in experiment.rounds():
        if leak:
            kept.append(experiment.client(0))
        seen.append(resident())
    experiment.close()
    slope = statistics.linear_regression(range(FIRST, ROUNDS), seen[FIRST:]).slope
    return slope / sum(p.nbytes for p in experiment.part_table.client.parameters())


def in_new_process(executor, leak=False):
    """Runs in a new process: memory freed by earlier tests would hide growth."""
    code = f"from tests.engine.test_memory_over_rounds import copies_per_round as c; print(c({executor!r}, {leak}))"
    root = Path(__file__).parents[2]
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return float(child.stdout)


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
def test_memory_does_not_grow(executor):
    assert in_new_process(executor) < 0.25


def test_a_leak_of_one_model_per_round_is_detected():
    assert in_new_process("sequential", leak=True) > 0.5
