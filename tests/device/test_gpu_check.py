"""``make gpu-check``: refuses to say anything without a GPU; its measurements run on any device."""

import subprocess
import sys

import pytest
import torch

from tests.device import gpu_check

CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_fails_and_says_so(tmp_path):
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tests.device.gpu_check"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs a GPU, and there is none" in done.stderr
    assert not (tmp_path / gpu_check.REPORT).exists()


def test_rounds_and_convolutions_are_measured(monkeypatch):
    monkeypatch.setattr(gpu_check, "STEPS", 1)
    monkeypatch.setattr(gpu_check, "CONVOLUTIONS", {"small": (1, 2, 8)})
    (*_, row) = gpu_check.rounds(CPU, ("FedAvg, CNN",), clients=2)
    name, step, whole, _, estimate = row.strip("| ").split(" | ")
    assert name == "FedAvg, CNN"
    assert float(step) > 0
    assert float(whole) > 0
    assert int(estimate) > 0
    (*_, row) = gpu_check.convolutions(CPU, clients=2)
    assert len([float(cell) for cell in row.strip("| ").split(" | ")[1:]]) == 3


def test_the_report_holds_everything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("machine", "rounds", "convolutions"):
        monkeypatch.setattr(gpu_check, name, lambda *_, name=name: [f"result of {name}"])
    monkeypatch.setattr(gpu_check, "run_tests", lambda: (False, ["1 failed"]))
    assert not gpu_check.report()
    text = gpu_check.REPORT.read_text()
    for part in ("## Tests: FAILED", "1 failed", "result of machine", "result of rounds", "result of convolutions"):
        assert part in text
