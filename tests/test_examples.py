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
