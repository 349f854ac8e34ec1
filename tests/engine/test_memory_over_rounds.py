"""Memory is flat over rounds: what a round takes, it gives back."""

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

ROUNDS, FIRST = 300, 100  # those up to FIRST warm up
WIDTH = 4096

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(resident() == 0, reason="the system does not say how much memory a process has"),
]


def wide():
    """Quick to train, yet large enough, 160 KiB, that one copy more in every round is seen."""
    return Backbone(nn.Sequential(nn.Flatten(), nn.Linear(6, WIDTH), nn.ReLU()), nn.Linear(WIDTH, small.CLASSES), WIDTH)


def copies_per_round(executor, keeps=False):
    """How much more memory there is after every round, in copies of a client's model; ``keeps`` one on purpose."""
    torch.set_num_threads(1)
    kept = []
    workers = 2 if executor == "threads" else 0
    values = {"model": wide(), "dtype": "float32", "rounds": ROUNDS, "lr": 0.001, "eval_every": 10}
    experiment = small.experiment("fedper", executor=executor, workers=workers, **values)
    seen = []
    for _ in experiment.rounds():
        if keeps:
            kept.append(experiment.client(0))
        seen.append(resident())
    experiment.close()
    slope = statistics.linear_regression(range(FIRST, ROUNDS), seen[FIRST:]).slope
    return slope / sum(p.nbytes for p in experiment.part_table.client.parameters())


def in_a_process_of_its_own(executor, keeps=False):
    """Elsewhere, what earlier tests have given back would hide what is kept."""
    words = f"from tests.engine.test_memory_over_rounds import copies_per_round as c; print(c({executor!r}, {keeps}))"
    root = Path(__file__).parents[2]
    child = subprocess.run([sys.executable, "-c", words], cwd=root, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return float(child.stdout)


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
def test_memory_does_not_grow(executor):
    assert in_a_process_of_its_own(executor) < 0.25


def test_a_model_kept_in_every_round_would_be_seen():
    assert in_a_process_of_its_own("sequential", keeps=True) > 0.5
