"""Exit codes, and what a failed start leaves behind."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from PIL import Image

from pfl_fast import ops
from pfl_fast.cli import messages
from pfl_fast.cli.train import remove_failed_start
from pfl_fast.errors import did_you_mean
from pfl_fast.methods import METHODS
from tests.cli.conftest import SMALL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--augment", "filp"], "augment: must be one of .*did you mean 'flip'"),
        (["--join-ratio", "0"], "join_ratio: must be positive"),
        (["--ops", "native"], "ops: the native library is not available"),
        (["--dataset", "./nowhere"], "does not exist"),
    ],
)
def test_wrong_requests_exit_with_2_and_leave_no_folder(cli, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr(ops, "NATIVE", SimpleNamespace(available=False, problem="not compiled"))
    result = cli("train", "fedavg", *SMALL, *arguments, exit_code=2)
    assert re.search(message, result.output)
    assert not list((tmp_path / "runs").glob("*"))


def test_a_mistake_that_the_probe_finds_leaves_no_folder(cli, tmp_path):
    code = "from pfl_fast.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n"
    code += "    def loss(self, client, batch):\n        return super().loss(client, batch)[0]\n"
    (tmp_path / "own.py").write_text(code)
    assert "return the pair" in cli("train", "own.py:Mine", *SMALL, "--out", "run", exit_code=2).output
    assert not (tmp_path / "run").exists()


def test_a_refused_start_leaves_the_folder_of_another_process(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    code = (
        "import sys; from pathlib import Path; from pfl_fast.engine.results.run_lock import RunLock\n"
        f"lock = RunLock(Path({str(folder)!r})); lock.acquire(print); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        (folder / "partition").mkdir()
        remove_failed_start(folder)
        assert (folder / "partition").exists()
        other.stdin.close()
    remove_failed_start(folder)
    assert not folder.exists()


def test_ctrl_c_exits_with_130_before_the_first_round(cli, monkeypatch):
    def interrupted(*_arguments, **_values):
        raise KeyboardInterrupt

    monkeypatch.setattr("pfl_fast.assembly.resolve", interrupted)
    assert "Interrupted" in cli("train", "fedavg", *SMALL, exit_code=130).output


def test_letters_in_the_wrong_order_are_the_best_guess():
    assert did_you_mean("fedpc", METHODS) == "; did you mean 'fedcp'?"


def test_pictures_have_the_format_of_their_name(cli, tmp_path):
    cli("data", "show", "digits", "--out", "sheet.jpg")
    assert Image.open(tmp_path / "sheet.jpg").format == "JPEG"
    cli("data", "show", "digits", "--out", "sheet.pdf")
    assert (tmp_path / "sheet.pdf").read_bytes().startswith(b"%PDF")
    assert "choose one of these endings" in cli("data", "show", "digits", "--out", "sheet.doc", exit_code=2).output


def test_commands_to_try_next_name_the_folder_of_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "pfl-fast")])
    monkeypatch.setenv("PATH", "/nowhere")
    assert messages.program() == ".venv/bin/pfl-fast"
