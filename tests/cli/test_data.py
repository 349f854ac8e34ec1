import json

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.data import load
from pfl_fast.errors import DataError
from tests.data.archives import write_mnist


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_datasets_shows_what_is_on_disk(tmp_path):
    write_mnist(tmp_path / "mnist")
    before = run("datasets", "--data-dir", str(tmp_path))
    assert before.exit_code == 0
    row = next(line for line in before.output.splitlines() if line.startswith("mnist "))
    assert row.split()[1:7] == ["images", "10", "70000", "1x28x28", "12", "MB"]
    assert "raw" in row
    assert "prepared" not in row
    assert run("data", "get", "mnist", "--data-dir", str(tmp_path)).exit_code == 0
    after = run("datasets", "--data-dir", str(tmp_path))
    assert "raw + prepared" in next(line for line in after.output.splitlines() if line.startswith("mnist "))


def test_datasets_as_json(tmp_path):
    write_mnist(tmp_path)
    rows = json.loads(run("datasets", "--json", "--data-dir", str(tmp_path)).output)
    assert len(rows["mnist"]["on_disk"]["raw"]) == 4
    assert rows["tiny"]["on_disk"] == {"raw": [], "prepared": []}
    assert rows["tiny"]["files"][0]["checksum"] == "md5:90528d7ca1a48142e341f4ef8d21d0de"
    assert rows["pacs"]["by_hand"]
    assert rows["cifar10"]["input_shape"] == [3, 32, 32]


def test_the_environment_variable_sets_the_data_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path / "elsewhere")
    monkeypatch.setenv("PFL_FAST_DATA", str(tmp_path / "elsewhere"))
    assert json.loads(run("datasets", "--json").output)["mnist"]["on_disk"]["raw"]


def test_get(tmp_path):
    write_mnist(tmp_path / "mnist")
    result = run("data", "get", "mnist", "--image-size", "9", "--data-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "mnist: 10 samples of 1 x 9 x 9, 3 of them test samples, 10 classes (real)" in result.output
    assert len(list(tmp_path.glob("cache/prepared/mnist-9-*/x.npy"))) == 1


def test_datasets_finds_the_cache_of_a_read_only_folder(tmp_path):
    folder = tmp_path / "read-only"
    write_mnist(folder)
    folder.chmod(0o555)
    try:
        assert run("data", "get", "mnist", "--data-dir", str(folder)).exit_code == 0
        rows = json.loads(run("datasets", "--json", "--data-dir", str(folder)).output)
        (prepared,) = rows["mnist"]["on_disk"]["prepared"]
        assert prepared.startswith(str(tmp_path / "cache"))
        assert json.loads(run("datasets", "--json").output)["mnist"]["on_disk"]["prepared"] == []
    finally:
        folder.chmod(0o755)


def test_get_prints_instructions_for_manual_downloads(tmp_path):
    result = run("data", "get", "pacs", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: pacs: not found")
    assert str(tmp_path / "pacs") in result.output
    assert "Traceback" not in result.output


def test_get_never_generates_a_stand_in(monkeypatch):
    def fail(*_, **__):
        raise DataError("no connection")

    monkeypatch.setattr(load, "fetch", fail)
    result = run("data", "get", "cifar10")
    assert result.exit_code == 1
    assert "no connection" in result.output
    assert "STAND-IN" not in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["data", "get", "mnst"], 2, "did you mean 'mnist'"),
        (["data", "get", "mnist", "--image-size", "0"], 2, "image_size: must be at least 1"),
        (["data", "get"], 2, "Missing argument"),
    ],
)
def test_mistakes(arguments, code, message):
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.output


@pytest.mark.parametrize("command", [["datasets"], ["data"], ["data", "get"]])
def test_help_has_examples(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"pfl-fast {command[0]}" in result.output.split("Examples:")[1]
