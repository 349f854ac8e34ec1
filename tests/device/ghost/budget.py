"""Counts launches, synchronisations, bytes and memory of rounds on a ghost GPU.

python -m tests.device.ghost.budget    # writes budget.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.device.ghost.build import environment

FILE = Path(__file__).with_name("budget.json")
METHODS = ("fedavg", "fedcp")
CLIENTS, FEW, MANY = 20, 2, 4  # steps per client of the two runs whose difference is the cost of a step
Figures = dict[str, dict[str, float]]


def run(gpus: int = 1, memory: int = 40 << 30, **request: Any) -> dict[str, Any]:
    """Result of :mod:`tests.device.ghost.rounds` in a process with ghost GPUs."""
    command = [sys.executable, "-m", "tests.device.ghost.rounds", json.dumps(request)]
    done = subprocess.run(command, env=environment(gpus, memory), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def count(method: str) -> Figures:
    """Figures of the CNN with 20 clients in one stack: per step, and per round besides its steps.

    The peak of memory is that of the run with more steps.
    """
    few, many = (run(method=method, clients=CLIENTS, steps=steps)["figures"] for steps in (FEW, MANY))
    step = {name: (many[name] - few[name]) / (MANY - FEW) for name in many if name != "peak bytes"}
    whole = {name: few[name] - FEW * step[name] for name in step}
    return {"step": step, "round": {**whole, "peak bytes": many["peak bytes"]}}


if __name__ == "__main__":
    counted = {"torch": torch.__version__, **{method: count(method) for method in METHODS}}
    FILE.write_text(json.dumps(counted, indent=2) + "\n")
