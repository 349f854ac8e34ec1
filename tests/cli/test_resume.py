import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_fast.cli.resume import CHANGEABLE
from pfl_fast.config import NOT_IN_RESULTS
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.experiment import Experiment
from tests.cli.conftest import SMALL, read_rounds


def losses(folder):
    return [record["train_loss"] for record in read_rounds(folder)]


def test_added_rounds_equal_those_of_a_longer_run(cli):
    cli("train", "fedcp", *SMALL, "--out", "a")
    page = cli("resume", "a", "--rounds", 3, "--executor", "sequential").stdout
    cli("train", "fedcp", *SMALL[:-1], 3, "--out", "b")
    assert losses("a") == pytest.approx(losses("b"), rel=1e-5)
    assert len(losses("a")) == 3
    assert "3 from round 3" in page
    assert "sequential on cpu" in page
    assert "pfl-fast resume a --rounds 6" in page


def test_finished_run_prints_its_summary(cli):
    cli("train", "fedcp", *SMALL, "--out", "a")
    before = losses("a")
    page = cli("resume", "a").stdout
    assert "2, all done" in page
    assert "after aggregation" in page
    assert losses("a") == before


def test_options_are_the_settings_that_may_change(cli):
    page = cli("resume", "--help").stdout
    assert set(CHANGEABLE) == NOT_IN_RESULTS
    for name in CHANGEABLE:
        assert f"--{name.replace('_', '-')} " in page
    assert "--lr" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "1"], "--lr would change the results of the run"),
        (["--rounds", "1"], "must be at least 2, the number of the run"),
        (["--rounds", "many", "--workers", "-1"], "rounds: must be an integer"),
        (["--rounds", "many", "--workers", "-1"], "workers: must be at least 0"),
    ],
)
def test_errors(cli, arguments, message):
    cli("train", "local", *SMALL, "--out", "a", "--quiet")
    assert message in cli("resume", "a", *arguments, exit_code=2).stderr


def test_folder_without_a_run_is_an_error(cli):
    assert "holds no run" in cli("resume", "nowhere", exit_code=2).stderr


def test_ctrl_c_saves_the_run_and_prints_how_to_continue(cli):  # noqa: ARG001 runs in an empty folder
    command = [sys.executable, "-u", "-m", "pfl_fast", "train", "fedavg", *SMALL[:-1], "100000", "--out", "a"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "samples/s" in line:
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted (SIGINT)" in errors
    assert "Continue with: pfl-fast resume a" in errors
    assert "Traceback" not in errors
    saved = losses("a")
    assert saved
    assert json.loads(Path("a/summary.json").read_text())["rounds"] == len(saved)
    experiment = Experiment.resume("a")
    assert next(experiment.rounds())["round"] == len(saved) + 1
    experiment.close()


@pytest.mark.slow
def test_of_two_processes_one_trains_and_the_other_is_refused(cli):
    cli("train", "fedavg", *SMALL, "--out", "a", "--quiet")
    command = [sys.executable, "-u", "-m", "pfl_fast", "resume", "a", "--rounds", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        next(line for line in process.stdout if "samples/s" in line)
        errors = cli("resume", "a", exit_code=1).stderr
        assert f"process {process.pid} trains this run on this host" in errors
        process.kill()
    again = Experiment.resume("a", log=(messages := []).append)
    assert "which has ended; this process takes it over" in messages[0]
    assert again.settings.rounds == 100000
    next(again.rounds())
    again.close()
    numbers = [record["round"] for record in read_rounds("a")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers == [record["round"] for record in again.records]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (None, 130)])
def test_exit_code_is_128_plus_the_signal(cli, monkeypatch, number, exit_code):
    def interrupted(_experiment):
        error = Interrupted()
        error.signal = number
        raise error

    monkeypatch.setattr(Experiment, "run", interrupted)
    errors = cli("train", "local", *SMALL, "--out", "my run", exit_code=exit_code).stderr
    assert "0 of 2 rounds are saved in my run" in errors
    assert "pfl-fast resume 'my run'" in errors
    assert ("SIGTERM" in errors) == (number == signal.SIGTERM)
