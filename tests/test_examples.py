"""Examples run as their docstrings say."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_drop_in_gives_equal_losses():
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "drop_in.py"), "--rounds", "1"], capture_output=True, text=True, check=True
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
