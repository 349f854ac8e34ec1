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
CASES = [(method, model) for model in ("cnn", "resnet18") for method in ("fedavg", "fedcp", "fedpick")]
CLIENTS, STEPS = 20, 4
Figures = dict[str, dict[str, float]]


def run(gpus: int = 1, memory: int = 40 << 30, **request: Any) -> dict[str, Any]:
    """Result of :func:`tests.device.ghost.rounds.result` in a process with ghost GPUs."""
    return run_all([request], gpus, memory)[0]


def run_all(requests: list[dict[str, Any]], gpus: int = 1, memory: int = 40 << 30) -> list[dict[str, Any]]:
    """Results of several requests in one process."""
    command = [sys.executable, "-m", "tests.device.ghost.rounds", json.dumps(requests)]
    done = subprocess.run(command, env=environment(gpus, memory), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


def case_name(method: str, model: str) -> str:
    """Name of a case in the budget."""
    return f"{method} {model}"


def count(cases: list[tuple[str, str]]) -> dict[str, Figures]:
    """Figures of 20 clients in one stack: per step, and per round besides its steps; the peak is the round's."""
    requests = [{"method": method, "model": model, "clients": CLIENTS, "steps": STEPS} for method, model in cases]
    return {case_name(*case): split(result) for case, result in zip(cases, run_all(requests), strict=True)}


def split(result: dict[str, Any]) -> Figures:
    """Figures of a step, and of the round besides its steps."""
    step, whole = result["step"], result["figures"]
    return {"step": step, "round": {name: whole[name] - STEPS * step.get(name, 0) for name in whole}}


if __name__ == "__main__":
    counted = {"torch": torch.__version__, **count(CASES)}
    FILE.write_text(json.dumps(counted, indent=2) + "\n")
