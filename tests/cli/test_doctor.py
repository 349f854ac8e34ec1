import json
import sys

import pytest

from pfl_fast.native import build


def test_page_has_all_facts(cli):
    page = cli("doctor").output
    for text in ("torch", "torchvision", "compiler", "nvcc", "CUDA", "threads", "data", "cache", "Ready to train."):
        assert text in page


def test_json_has_all_sections(cli):
    diagnosis = json.loads(cli("doctor", "--json").output)
    assert diagnosis["can_train"] is True
    assert set(diagnosis["facts"]) == {"versions", "folders", "kernels", "devices"}


def test_data_folder_follows_the_environment(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_FAST_DATA", str(tmp_path / "data"))
    diagnosis = json.loads(cli("doctor", "--json").output)
    assert diagnosis["facts"]["folders"]["data"] == str(tmp_path / "data")


def test_exit_code_is_1_without_torch(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in cli("doctor", exit_code=1).output


@pytest.mark.parametrize(("tool", "remedy"), [("find_compiler", "apt-get install g++"), ("find_nvcc", "")])
def test_training_is_possible_without_compilers(cli, monkeypatch, tool, remedy):
    monkeypatch.setattr(build, tool, lambda *_: None)
    assert remedy in cli("doctor").output
