"""A run stopped at any moment and resumed has the results of an uninterrupted run, to the bit."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from pfl_fast.engine.results.listeners import Listener
from pfl_fast.engine.state import checkpoint
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import ConfigError, PflFastError
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small

SETTINGS = {"join_ratio": 0.7, "momentum": 0.5, "keep_momentum": True, "policy": "gumbel", "gumbel_at_eval": True}


class StopAfter(Listener):
    """Stops the run after ``clients`` clients have trained."""

    def __init__(self, experiment, clients):
        self.experiment, self.left = experiment, clients

    def client_done(self, *_):
        self.left -= 1
        if self.left == 0:
            self.experiment.round.executor.stop.set()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def uninterrupted():
    experiment = small.image_experiment(norm=True, **SETTINGS)
    experiment.run()
    yield experiment
    experiment.close()


@pytest.mark.parametrize("executor", ["sequential", "threads", "batched"])
@pytest.mark.parametrize("clients", [1, 3, 4, 7, 12])
def test_a_run_stopped_between_clients_resumes_to_the_bit(tmp_path, executor, clients):
    settings = {**SETTINGS, "executor": executor, "workers": 2, "stack": 2, "norm": True}
    whole = small.image_experiment(**settings)
    whole.run()
    stopped = small.image_experiment(out=tmp_path / "run", **settings)
    stopped.listeners.append(StopAfter(stopped, clients))
    try:
        stopped.run()
    except Interrupted:
        assert stopped.round.state.rounds_done < 3
    else:
        assert clients == 12, "the last client ends the run"
    again = small.resume_image_experiment(tmp_path / "run", norm=True)
    again.run()
    assert same(small.state_of(again), small.state_of(whole))
    assert small.untimed_records(again) == small.untimed_records(whole)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_resumes_to_the_bit(tmp_path, method):
    """Stops in the second round; in each round, only some clients train (``centralised``: one on the data of all)."""
    settings = {**small.METHOD_SETTINGS.get(method, {}), "norm": True, "join_ratio": 0.7, "momentum": 0.5}
    whole = small.image_experiment(method, **settings)
    whole.run()
    stopped = small.image_experiment(method, out=tmp_path / "run", **settings)
    stopped.listeners.append(StopAfter(stopped, 2 if stopped.round.pools_data(1) else 7))
    with pytest.raises(Interrupted):
        stopped.run()
    again = small.resume_image_experiment(tmp_path / "run", norm=True)
    assert 0 < again.round.state.rounds_done < 3
    again.run()
    assert same(small.state_of(again), small.state_of(whole))
    assert small.untimed_records(again) == small.untimed_records(whole)
    assert again.summary()["test_accuracy_after_local"] == whole.summary()["test_accuracy_after_local"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["per-fedavg", "fedala", "fedper"])
def test_a_stop_during_tests_still_records_the_round(tmp_path, method):
    """Some methods train before a test. The round is complete by then, so it must be in the results."""
    whole = small.image_experiment(method)
    whole.run()
    stopped = small.image_experiment(method, out=tmp_path / "run")
    stopped.listeners.append(StopAfter(stopped, 6))  # the last client of the first round
    with pytest.raises(Interrupted):
        stopped.run()
    assert [record["round"] for record in stopped.records] == [1]
    again = small.resume_image_experiment(tmp_path / "run")
    again.run()
    assert same(small.state_of(again), small.state_of(whole))
    assert small.untimed_records(again) == small.untimed_records(whole)


# Kills its own process, without clean-up, at the moment given by the first argument.
CHILD = """
import os, signal, sys
from pathlib import Path
from pfl_fast.engine.results import run_folder
from pfl_fast.engine.state import checkpoint
from pfl_fast.engine.results.listeners import Listener
from pfl_fast.methods import METHODS
from tests.engine import small_experiments as small
from tests.engine.test_resume import SETTINGS

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class KillAfter(Listener):
    left = 7
    def client_done(self, *_):
        self.left -= 1
        if self.left == 0:
            die()

where, folder = sys.argv[1:]
experiment = small.image_experiment(out=folder, norm=True, checkpoint_seconds=0, **SETTINGS)
if where == "training":
    experiment.listeners.append(KillAfter())
if where == "half a file":
    def half(tensors, file):
        Path(file).write_bytes(b"cut short")
        if experiment.round.state.rounds_done == 2:
            die()
        real(tensors, file)
    real, checkpoint.save_file = checkpoint.save_file, half
if where == "between the files":
    def digest(*arguments):
        if experiment.round.state.rounds_done == 2:
            die()
        return real(*arguments)
    real, checkpoint.file_digest = checkpoint.file_digest, digest
if where == "before the checkpoint":
    def save(self, experiment):
        if experiment.round.state.rounds_done == 2:
            die()
        real(self, experiment)
    real, run_folder.RunFolder.save = run_folder.RunFolder.save, save
experiment.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["training", "half a file", "between the files", "before the checkpoint"])
def test_a_killed_run_resumes_to_the_bit(tmp_path, uninterrupted, where):
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), where, str(tmp_path / "run")],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    again = small.resume_image_experiment(tmp_path / "run", norm=True)
    assert again.round.state.rounds_done == 1, "the checkpoint of the first round is complete"
    again.run()
    assert same(small.state_of(again), small.state_of(uninterrupted))
    assert small.untimed_records(again) == small.untimed_records(uninterrupted)


def finished(folder, **settings):
    experiment = small.image_experiment(out=folder, checkpoint_seconds=0, **settings)
    experiment.run()
    return experiment


@pytest.mark.parametrize("damage", ["cut", "edited", "missing", "json cut"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(tmp_path, damage):
    whole = finished(tmp_path / "run")
    newest = tmp_path / "run" / "checkpoint" / "round-000003.safetensors"
    content = newest.read_bytes()
    if damage == "cut":
        newest.write_bytes(content[:-7])
    elif damage == "edited":
        newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "missing":
        newest.unlink()
    else:
        newest = newest.with_suffix(".json")
        newest.write_text(newest.read_text()[:40])
    messages = []
    again = small.resume_image_experiment(tmp_path / "run", log=messages.append)
    assert "round-000003" in messages[0]
    assert "before" in messages[0]
    assert again.round.state.rounds_done == 2
    again.run()
    assert same(small.state_of(again), small.state_of(whole))


def test_no_usable_checkpoint_is_an_error(tmp_path):
    finished(tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoint").glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint can be used"):
        small.resume_image_experiment(tmp_path / "run")


def test_only_two_checkpoints_are_kept(tmp_path):
    finished(tmp_path / "run", rounds=4)
    names = sorted(file.name for file in (tmp_path / "run" / "checkpoint").glob("round-*"))
    assert names == [f"round-00000{r}.{end}" for r in (3, 4) for end in ("json", "safetensors")]


def test_result_settings_cannot_be_changed_on_resume(tmp_path):
    finished(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"lr: was 0\.1, asked for 0\.2(.|\n)*lam: was 1\.0, asked for 2\.0"):
        small.resume_image_experiment(tmp_path / "run", lr=0.2, lam=2.0)
    with pytest.raises(ConfigError, match="rounds"):
        small.resume_image_experiment(tmp_path / "run", rounds=2)


def test_an_edited_configuration_is_refused_with_the_difference(tmp_path):
    finished(tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.3"))
    with pytest.raises(PflFastError, match=r"lr: was 0\.1, is 0\.3"):
        small.resume_image_experiment(tmp_path / "run")


def test_executor_may_change_and_rounds_may_be_added(tmp_path):
    finished(tmp_path / "run", dtype="float64")
    longer = small.resume_image_experiment(tmp_path / "run", rounds=5, executor="batched")
    longer.run()
    whole = small.image_experiment(rounds=5, dtype="float64")
    whole.run()
    a, b = small.state_of(longer), small.state_of(whole)
    assert all(torch.allclose(a[name], b[name], atol=1e-12) for name in a)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    finished(tmp_path / "a", norm=True)
    state = small.image_experiment().state
    with pytest.raises(PflFastError, match=r"no checkpoint can be used(.|\n)*another model"):
        checkpoint.restore(state, tmp_path / "a" / "checkpoint", lambda _: None)
    assert state.rounds_done == 0


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    finished(tmp_path / "run")
    with pytest.raises(PflFastError, match="already holds a run"):
        small.image_experiment(out=tmp_path / "run")


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    experiment = small.image_experiment(out=tmp_path / "run", checkpoint_seconds=0)
    real = checkpoint.save_file

    def full(tensors, file):
        if experiment.round.state.rounds_done >= 2:
            file.write_bytes(b"as much as fitted")
            raise OSError(28, "No space left on device")
        real(tensors, file)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(checkpoint.CheckpointError, match="No space left on device"):
        experiment.run()
    monkeypatch.undo()
    names = sorted(file.name for file in (tmp_path / "run" / "checkpoint").glob("round-*"))
    assert names == [f"round-00000{r}.{end}" for r in (0, 1) for end in ("json", "safetensors")]
    again = small.resume_image_experiment(tmp_path / "run")
    again.run()
    whole = small.image_experiment()
    whole.run()
    assert same(small.state_of(again), small.state_of(whole))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_and_keeps_its_results(tmp_path, number):
    experiment = small.image_experiment(out=tmp_path / "run")

    class SendSignal(Listener):
        def client_done(self, round, done, *_):
            if (round, done) == (2, 4):
                os.kill(os.getpid(), number)

    experiment.listeners.append(SendSignal())
    with pytest.raises(Interrupted) as caught:
        experiment.run()
    assert caught.value.signal == number
    assert len(experiment.round.state.unfinished.reports) == 4
    again = small.resume_image_experiment(tmp_path / "run")
    assert len(again.round.state.unfinished.reports) == 4
    again.run()
    whole = small.image_experiment()
    whole.run()
    assert same(small.state_of(again), small.state_of(whole))
