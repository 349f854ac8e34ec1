"""Trackers, against modules that record the calls; tests/cli/test_log.py uses the real TensorBoard."""

import json
import sys
from types import SimpleNamespace

import pytest

from pfl_fast.cli.setting_options import TRACKERS as ON_COMMAND_LINE
from pfl_fast.engine.stopping import Interrupted
from pfl_fast.experiment import Experiment
from pfl_fast.trackers import TRACKERS, MLflow, TensorBoard, WandB


def experiment(folder, **values):
    settings = {"samples": 200, "image_size": 8, "clients": 3, "model": "mlp", "rounds": 3, **values}
    return Experiment("fedcp", dataset="synthetic", out=folder, log=lambda _: None, **settings)


def test_the_command_line_offers_all_trackers():
    assert set(ON_COMMAND_LINE) == set(TRACKERS)


class Recorder:
    """Stands in for a module; records the calls of its functions."""

    def __init__(self, **results):
        self.calls, self.results = [], results

    def __getattr__(self, name):
        def call(*args, **named):
            self.calls.append((name, args, named))
            return self.results.get(name)

        return call

    def named(self, name):
        return [(args, named) for called, args, named in self.calls if called == name]


def test_wandb_continues_its_run(tmp_path, monkeypatch):
    run = Recorder()
    run.id, run.summary = "abc", {}
    module = Recorder(init=run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    first = experiment(tmp_path / "run", rounds=2)
    first.listeners.append(WandB(tmp_path / "run"))
    summary = first.run()
    again = Experiment.resume(tmp_path / "run", log=lambda _: None, rounds=3)
    again.listeners.append(WandB(tmp_path / "run"))
    again.run()
    opened = [named for _, named in module.named("init")]
    assert [named["id"] for named in opened] == [None, "abc"]
    assert opened[0]["config"]["method"] == "fedcp"
    assert opened[0]["name"] == "run"
    logged = [(named["step"], args[0]["test/accuracy_after_agg"]) for args, named in run.named("log")]
    assert logged == [(n, r["test_accuracy_after_agg"]) for n, r in enumerate(again.records, 1)]
    assert run.summary["test_accuracy_after_agg/best"] >= summary["test_accuracy_after_agg"]["best"]
    assert len(run.named("finish")) == 2


def test_mlflow_receives_settings_metrics_and_the_end(tmp_path, monkeypatch):
    module = Recorder(start_run=SimpleNamespace(info=SimpleNamespace(run_id="m1")))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    one = experiment(tmp_path / "run", rounds=1)
    one.listeners.append(MLflow(tmp_path / "run"))
    one.run()
    assert module.named("start_run") == [((), {"run_id": None, "run_name": "run"})]
    sent = [args[0] for args, _ in module.named("log_params")]
    assert all(len(some) <= 100 for some in sent)
    assert {n: v for some in sent for n, v in some.items()} == one.result_settings()
    (args, named), last = module.named("log_metrics")
    assert named == {"step": 1}
    assert args[0]["train/loss"] == one.records[0]["train_loss"]
    assert last[0][0]["test_accuracy_after_agg/last"] == one.records[0]["test_accuracy_after_agg"]
    assert json.loads((tmp_path / "run" / "trackers.json").read_text()) == {"mlflow": "m1"}
    assert module.calls[-1][0] == "end_run"


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    said = []
    tracker = TensorBoard(tmp_path, said.append)
    monkeypatch.setattr(tracker, "begin", lambda *_: None)
    monkeypatch.setattr(tracker, "send", lambda *_: 1 / 0)
    run = experiment(None)
    run.listeners.append(tracker)
    assert run.run()["rounds"] == 3
    assert said == ["tensorboard: ZeroDivisionError: division by zero; the run continues, nothing more is sent"]


def test_an_interrupted_run_closes_its_tracker(tmp_path, monkeypatch):
    tracker = TensorBoard(tmp_path, print)
    ended = []
    monkeypatch.setattr(tracker, "end", ended.append)
    run = experiment(None)
    run.listeners.append(tracker)
    rounds = run.rounds()
    record = next(rounds)
    run.round.executor.stop.set()
    with pytest.raises(Interrupted):
        next(rounds)
    tracker.writer.close()
    assert len(ended) == 1
    assert ended[0]["test_accuracy_after_agg/last"] == record["test_accuracy_after_agg"]
