"""Methods and models from the user's files, on the command line."""

import subprocess
import sys

import pytest

from tests.cli.conftest import SMALL


@pytest.fixture
def own(cli, tmp_path):
    cli("new", "method", "SoftHead")
    return cli, tmp_path


def test_a_new_method_trains_resumes_and_is_described(own):
    cli, folder = own
    assert (folder / "soft_head.py").read_text().count("\n") < 50
    output = cli("train", "soft_head.py:SoftHead", *SMALL, "--set", "mu=0.5", "--executor", "batched").output
    assert "SoftHead: Shared extractor, personal head with a penalty" in output
    config = folder / "runs" / "softhead-synthetic-1" / "config.toml"
    assert f'method = "{folder}/soft_head.py:SoftHead"' in config.read_text()
    cli("resume", "runs/softhead-synthetic-1", "--rounds", "3")
    assert "mu" in cli("methods", "soft_head.py:SoftHead").output
    assert "penalty" in (config.parent / "clients.csv").read_text()
    cli("compare", "--methods", "fedavg,soft_head.py:SoftHead", *SMALL, "--out", "both")
    cli("compare", "--methods", "fedavg,soft_head.py:SoftHead", *SMALL, "--out", "both")


def test_the_written_test_passes(own):
    _, folder = own
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_soft_head.py", "-k", "falls"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_a_method_of_another_folder_needs_trust(own):
    cli, folder = own
    with (folder / "soft_head.py").open("a") as file:
        file.write("from pathlib import Path\nPath('loaded').touch()\n")
    cli("train", "soft_head.py:SoftHead", *SMALL, "--out", "mine")
    (folder / "mine").rename(folder / "theirs")
    (folder / "loaded").unlink()
    sys.modules.pop(str(folder / "soft_head.py"))
    for command in (["resume", "theirs", "--rounds", "3"], ["train", "--config", "theirs/config.toml"]):
        assert "soft_head.py:SoftHead" in cli(*command, exit_code=2).output
        assert not (folder / "loaded").exists()
    cli("resume", "theirs", "--rounds", "3", "--trust")


def test_a_model_of_a_file(cli, tmp_path):
    code = "import torch\ndef net(shape, classes):\n"
    code += "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, classes))\n"
    (tmp_path / "nets.py").write_text(code)
    small = [argument for argument in SMALL if argument not in ("--model", "mlp")]
    cli("train", "fedavg", *small, "--model", "nets.py:net", "--head", "1", "--out", "run")
    assert f'model = "{tmp_path}/nets.py:net"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("own.py:Mine", "class Mine(Method):\n    pass", "method Mine has no parts(self, backbone)"),
        ("own.py:Mien", "class Mine(Method):\n    pass", "did you mean 'Mine'"),
        ("own.py:Mine", "Mine = 3", "must be a subclass of pfl_fast.methods.Method"),
        ("own.py:Mine", "class Mine(", "SyntaxError"),
        ("own.py", "", "name the class too, own.py:CLASS"),
        ("other.py:Mine", "", "FileNotFoundError"),
    ],
)
def test_mistakes_in_a_file_are_named(cli, tmp_path, name, code, message):
    (tmp_path / "own.py").write_text(f"from pfl_fast.methods import Method\n{code}\n")
    result = cli("train", name, *SMALL, exit_code=2)
    assert message in result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["3", "class", "a b", "../x"])
def test_names_that_no_class_can_have_are_refused(cli, name):
    assert "cannot be the name of a class" in cli("new", "method", name, exit_code=2).output


def test_files_are_not_overwritten(own):
    cli, _ = own
    assert "exist already" in cli("new", "method", "SoftHead", exit_code=2).output
