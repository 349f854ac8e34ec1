"""``torchrun -m pfl_fast``: output of rank 0, a killed rank, continuation."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pfl_fast.cli import main
from pfl_fast.experiment import Experiment

SETTINGS = {"dataset": "synthetic", "samples": 240, "clients": 4, "model": "mlp", "device": "cpu", "dtype": "float64"}
RUN = ["train", "fedcp", *(word for name, value in SETTINGS.items() for word in (f"--{name}", value))]
REFUSED = (
    "trains each run in one process; start pfl-fast train and resume with torchrun, and put their folders into one "
    "table with pfl-fast compare --runs"
)
END_SECONDS = 60  # torchrun kills what is left after 30 seconds


def torchrun(*arguments, size=2, **options):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size), "--standalone"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "-m", "pfl_fast", *map(str, arguments)], **streams, **options)


def ranks_of(process):
    """Process numbers of the ranks that a torchrun process has started."""
    found = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_text().split("\0")
        found.update({int(text[5:]): int(child) for text in variables if text.startswith("RANK=")})
    return found


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def rows(folder):
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_run_continues_in_one_process(tmp_path):
    folder = tmp_path / "run"
    process = torchrun(*RUN, "--rounds", 1000, "--checkpoint-seconds", 0, "--out", folder)
    try:
        wait_for(lambda: len(rows(folder)) >= 3)
        victim = ranks_of(process)[1]
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        output, errors = process.communicate(timeout=END_SECONDS)
    finally:
        process.kill()
    assert time.monotonic() - begin < END_SECONDS
    assert process.returncode == 1
    assert f"rank 1 (process {victim} on " in errors
    assert output.count("method    FedCP") == 1, "rank 0 prints"
    resumed = Experiment.resume(folder, log=lambda _: None)
    last = resumed.state.rounds_done + 1
    assert last >= 3, "a row of a round is written after the checkpoint of the round before"
    train_until(resumed, last)
    whole = Experiment("fedcp", log=lambda _: None, rounds=1000, **SETTINGS)
    train_until(whole, last)
    assert len(resumed.records) == len(whole.records) == last
    for mine, other in zip(resumed.records, whole.records, strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], abs=1e-9)
        assert mine["test_accuracy_after_agg"] == other["test_accuracy_after_agg"]


def train_until(running, round):
    for record in running.rounds():
        if record["round"] == round:
            break
    running.close()


def test_commands_that_train_one_run_after_the_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for arguments in (["compare", "--methods", "fedcp", "--out", "x"], ["reproduce", "fedcp/table2"]):
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, result.output) == (2, f"Error: torchrun: {arguments[0]} {REFUSED}\n")
