import pytest
from click.testing import CliRunner

from pfl_fast.cli import main

# A run of well under a second: generated data, three clients, a small model.
SMALL = ["--dataset", "synthetic", "--image-size", "8", "--samples", "200"]
SMALL += ["--clients", "3", "--model", "mlp", "--rounds", "2"]


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Calls the command in an empty folder, and says what it printed and how it ended."""
    monkeypatch.chdir(tmp_path)

    def call(*words, exit_code=0):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == exit_code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return call
