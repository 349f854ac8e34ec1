"""Examples run as their docstrings say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_three_changed_lines_give_the_same_losses():
    command = [sys.executable, str(EXAMPLES / "drop_in.py"), "--rounds", "2", "--samples", "120", "--threads", "1"]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plain, changed = ([float(v) for v in found.split(",")] for found in re.findall(r"losses ([\d., ]+)", page))
    assert plain == pytest.approx(changed, rel=5e-3)
    assert plain[-1] < plain[0]
    assert re.search(r"the changed trainer is \d\.\d\d times as fast", page)


def test_operators_in_a_plain_loop_give_equal_losses():
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "operators.py"), "--rounds", "1"], capture_output=True, text=True, check=True
    )
    losses = [[float(v) for v in found.split(",")] for found in re.findall(r"losses \[(.*?)\]", result.stdout)]
    assert len(losses) == 2
    for plain, fused in zip(*losses, strict=True):
        assert abs(plain - fused) < 1e-3 * plain
    assert losses[0][-1] < losses[0][0]
    assert "times as fast" in result.stdout


def test_ten_lines_trains_and_reads_a_client():
    command = [sys.executable, str(EXAMPLES / "ten_lines.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [int(n) for n in re.findall(r"^round (\d+):", result.stdout, re.MULTILINE)] == [1, 2, 3, 4, 5]
    losses = [float(v) for v in re.findall(r"loss ([\d.]+)", result.stdout)]
    assert losses[-1] < losses[0]
    accuracies = [float(v) for v in re.findall(r"accuracy ([\d.]+)", result.stdout)]
    assert f"best of all rounds: {max(accuracies):.3f}" in result.stdout
    assert re.search(r"client 3: [\d.]+ on its own [1-9]\d* test samples", result.stdout)
