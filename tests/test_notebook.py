"""Displays, progress and re-run cells in notebooks."""

import sys

import pytest

from pfl_fast import progress
from pfl_fast.engine.results.disk_errors import RunFolderError
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from tests.engine import small_experiments as small

SMALL = {"dataset": "synthetic", "samples": 200, "image_size": 8, "clients": 3, "model": "mlp", "rounds": 2}


def made(**values):
    return Experiment("fedavg", **SMALL, log=lambda _: None, **values)


def test_an_interrupted_cell_goes_on():
    with small.trained("fedcp", rounds=3) as whole:
        expected = small.state_of(whole), small.untimed_records(whole)
    running = small.experiment("fedcp", rounds=3)
    rounds = running.rounds()
    next(rounds)
    running.round.executor.stop.set()
    with pytest.raises(Interrupted, match=r"1 of 3 rounds are done; run\(\) or rounds\(\) continues"):
        next(rounds)
    running.run()
    assert small.differences(small.state_of(running), expected[0], 0) == {}
    assert small.untimed_records(running) == expected[1]
    running.close()


def test_a_cell_can_be_run_again(tmp_path):
    first = made(out=tmp_path / "run")  # not trained: it still holds the lock
    second = made(out=tmp_path / "run", overwrite=True)
    second.run()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"already holds a run: Experiment.resume .*overwrite=True replaces it"):
        made(out=tmp_path / "run")
    third = made(out=tmp_path / "run", overwrite=True, seed=1)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert (tmp_path / "run" / "notes.txt").exists()
    third.run()
    with pytest.raises(RunFolderError):
        first.run()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_run_that_is_being_trained_is_not_overwritten(tmp_path):
    running = made(out=tmp_path / "run")
    rounds = running.rounds()
    next(rounds)
    with pytest.raises(RunFolderError, match="this process trains this run"):
        made(out=tmp_path / "run", overwrite=True)
    assert len(list(rounds)) == 1


def test_experiment_and_records_are_displayed():
    experiment = made()
    assert repr(experiment) == (
        "Experiment(method: fedavg, data: synthetic (synthetic), 3 clients, model: mlp, rounds: 0 of 2)"
    )
    assert experiment._round is None, "a display does not allocate the state"
    experiment.run()
    value = f"{experiment.records[-1]['test_accuracy_after_agg']:.4f}"
    assert f"rounds: 2 of 2, accuracy: {value})" in repr(experiment)
    assert f"<td>{value}</td>" in experiment._repr_html_()
    assert f"<td>{value}</td>" in experiment.records._repr_html_()
    assert repr(experiment.records) == "Records(2 rounds)"


def test_records_as_a_frame(monkeypatch):
    pytest.importorskip("pandas")
    experiment = made()
    assert len(experiment.records.frame()) == 0
    experiment.run()
    frame = experiment.records.frame()
    assert list(frame.index) == [1, 2]
    assert frame["train_loss"].tolist() == [record["train_loss"] for record in experiment.records]
    assert frame["seconds_local"][2] == experiment.records[1]["seconds_by_part"]["local"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        experiment.records.frame()


def test_progress_in_notebooks_and_pipes(monkeypatch, capsys):
    assert progress.chosen_progress() is None, "no terminal: scripts and logs stay quiet"
    experiment = made()
    experiment.run(progress=True)
    assert "round 2/2" in capsys.readouterr().out
    assert experiment.listeners == []
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(progress, "find_spec", lambda _: None)
    assert isinstance(progress.chosen_progress(), progress.Lines), "without ipywidgets"
    monkeypatch.setattr(progress, "find_spec", lambda _: True)
    assert isinstance(progress.chosen_progress(), progress.Bar)
    assert progress.chosen_progress(False) is None
