"""Code that a configuration file names runs only for the user's own runs, or if the user says so."""

import shutil
import sys

import pytest

from pfl_fast import config
from pfl_fast.trust import UntrustedCodeError, check, named_code, remember
from tests.cli.conftest import SMALL

CODE = """
from pathlib import Path
import torch
Path("loaded").write_text("")
class Net(torch.nn.Sequential):
    def __init__(self, shape, classes):
        inputs = shape[0] * shape[1] * shape[2]
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(inputs, 4), torch.nn.ReLU(), torch.nn.Linear(4, classes))
def margin(logits, labels):
    return logits.max()
"""
NAMES = {"model": "nets:Net", "metrics": ["macro_f1", "nets:margin"]}


def test_only_models_and_metrics_of_modules_are_code():
    assert named_code(NAMES) == ["nets:Net", "nets:margin"]
    assert named_code({"metrics": "macro_f1, nets:margin"}) == ["nets:margin"]
    assert named_code({"model": "cnn", "metrics": (), "partition": "a:b", "out": "x:y"}) == []


def test_code_belongs_to_a_folder_and_to_names(tmp_path):
    file = tmp_path / "run" / "config.toml"
    with pytest.raises(UntrustedCodeError, match=r"names code, nets:Net, nets:margin(.|\n)*--trust"):
        check(file, NAMES, trusted=False)
    check(file, NAMES, trusted=True)
    check(file, {"model": "cnn"}, trusted=False)
    remember(file.parent, NAMES)
    check(file, NAMES, trusted=False)
    for other, names in ((tmp_path / "other" / "config.toml", NAMES), (file, {"model": "nets:Other"})):
        with pytest.raises(UntrustedCodeError):
            check(other, names, trusted=False)


def test_a_cache_that_others_may_write_to_proves_nothing(tmp_path):
    file = tmp_path / "run" / "config.toml"
    remember(file.parent, NAMES)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(UntrustedCodeError):
        check(file, NAMES, trusted=False)


@pytest.fixture
def own_run(cli, tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    arguments = [argument if argument != "mlp" else "nets:Net" for argument in SMALL]
    cli("train", "fedavg", *arguments, "--head", "3", "--metric", "nets:margin", "--out", "mine")
    (tmp_path / "mine").rename(tmp_path / "theirs")
    (tmp_path / "loaded").unlink()
    monkeypatch.delitem(sys.modules, "nets")
    return cli, tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["resume", "theirs", "--rounds", "3"],
        ["train", "--config", "theirs/config.toml", "--out", "again"],
        ["compare", "--methods", "fedavg", "--config", "theirs/config.toml", "--out", "again"],
    ],
)
def test_code_of_other_folders_needs_trust(own_run, command):
    cli, folder = own_run
    result = cli(*command, exit_code=2)
    assert "nets:Net" in result.output
    assert "--trust" in result.output
    assert not (folder / "loaded").exists()
    cli(*command, "--trust")
    assert (folder / "loaded").exists()


RECIPE = """
columns.synthetic = {dataset = "synthetic", samples = 200, image_size = 8}
numbers = "fedavg 90"
settings = {model = "mlp", rounds = 2, clients = 3, lr = 0.1, metrics = ["nets:margin"]}
"""


def test_code_of_recipes_needs_trust(own_run):
    cli, folder = own_run
    (folder / "table.toml").write_text(RECIPE)
    command = ["reproduce", "table.toml", "--dry-run"]
    result = cli(*command, exit_code=2)
    assert "table.toml names code, nets:margin" in result.output
    assert not (folder / "loaded").exists()
    cli(*command, "--trust")
    assert (folder / "loaded").exists()


def test_code_of_runs_in_the_folder_of_a_comparison_is_not_loaded(own_run):
    cli, folder = own_run
    command = ["compare", "--methods", "fedavg", *SMALL, "--out", "again"]
    cli(*command)
    run = folder / "again" / "runs" / "fedavg-seed0"
    shutil.rmtree(run)
    (folder / "theirs").rename(run)
    (run / "summary.json").unlink()
    result = cli(*command, exit_code=1)
    assert "names code, nets:Net" in result.output
    assert not (folder / "loaded").exists()


def test_own_runs_resume_without_trust(own_run):
    cli, folder = own_run
    (folder / "theirs").rename(folder / "mine")
    cli("resume", "mine", "--rounds", "3")
    assert config.read(folder / "mine" / "config.toml")["model"] == "nets:Net"


def test_code_on_the_command_line_replaces_that_of_the_file(own_run):
    cli, _ = own_run
    cli("train", "--config", "theirs/config.toml", "--model", "mlp", "--head", "none", "--metric", "macro_f1",
        "--out", "again")  # fmt: skip
