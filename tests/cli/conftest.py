import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main

# Arguments of a run that takes less than a second: generated data, three clients, a small model.
SMALL = ["--dataset", "synthetic", "--image-size", "8", "--samples", "200"]
SMALL += ["--clients", "3", "--model", "mlp", "--rounds", "2"]


def read_rounds(folder):
    """Returns the records of all rounds of a run."""
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Runs ``pfl-fast`` in an empty folder, checks the exit code and returns click's result."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, exit_code=0):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == exit_code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return call
