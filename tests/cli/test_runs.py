import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.engine.results.run_lock import RunLock

pytestmark = pytest.mark.usefixtures("cli", "stored")


@pytest.fixture
def stored(runs, tmp_path):
    """Copies of two runs in the working folder of ``cli``, the second one interrupted."""
    for run in runs:
        shutil.copytree(run, tmp_path / "runs" / run.name)
    summary = tmp_path / "runs" / "fedcp" / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "finished": False}))


def test_runs_are_listed(cli):
    lines = cli("runs").output.splitlines()
    records = [json.loads(line) for line in Path("runs/fedavg/metrics.jsonl").read_text().splitlines()]
    best = max(record["test_accuracy_after_agg"] for record in records)
    assert lines[1].split()[:6] == ["runs/fedavg", "fedavg", "mnist", "(stand-in)", "3/3", f"{best:.4f}"]
    assert [line.split()[-1] for line in lines[1:3]] == ["finished", "interrupted"]
    found = json.loads(cli("runs", ".", "--json").stdout)
    size = sum(file.stat().st_size for file in Path("runs/fedavg").rglob("*") if file.is_file())
    assert (found[0]["bytes"], found[0]["best"], len(found)) == (size, best, 2)


def test_damaged_runs_and_empty_folders_are_listed(cli):
    Path("runs/fedcp/config.toml").write_text("[")
    assert cli("runs").output.splitlines()[2].split()[-1] == "damaged"
    Path("empty").mkdir()
    assert "no runs in empty" in cli("runs", "empty").output
    assert "there is no such folder" in cli("runs", "other", exit_code=2).output


def test_a_run_is_removed_after_a_question():
    Path("runs/fedcp/notes.txt").write_text("mine")
    declined = CliRunner().invoke(main, ["runs", "rm", "runs/fedcp"], input="n\n")
    assert declined.exit_code == 1
    assert "with other files: notes.txt" in declined.output
    assert Path("runs/fedcp/notes.txt").exists()
    accepted = CliRunner().invoke(main, ["runs", "rm", "runs/fedcp"], input="y\n")
    assert accepted.exit_code == 0, accepted.output
    assert [path.name for path in Path("runs").iterdir()] == ["fedavg"]


def test_other_folders_and_running_runs_stay(cli):
    Path("project").mkdir()
    Path("project/config.toml").write_text("method = 'fedavg'\n")
    Path("link").symlink_to("runs/fedavg")
    for folder, problem in (("project", "holds no run"), ("link", "is a link"), ("runs", "holds no run")):
        assert problem in cli("runs", "rm", "runs/fedcp", folder, "--yes", exit_code=2).output
    lock = RunLock(Path("runs/fedavg"))
    lock.acquire(print)
    assert cli("runs").output.splitlines()[1].endswith("training")
    assert "trains this run" in cli("runs", "rm", "runs/fedcp", "runs/fedavg", "--yes", exit_code=1).output
    lock.release()
    assert Path("runs/fedcp/metrics.jsonl").exists()
    assert cli("runs", "rm", "runs/fedcp", "runs/fedavg", "--yes").output.endswith("runs/fedcp, runs/fedavg\n")
    assert list(Path("runs").iterdir()) == []


def test_report_from_the_command_line(cli):
    assert "a.html (0.1 MB)" in cli("report", "runs/fedavg", "runs/fedcp", "--out", "a.html").output
    assert "holds no run" in cli("report", "runs", exit_code=2).output
    assert "Missing argument" in cli("report", exit_code=2).output
