"""Files of a run folder."""

import csv
import json

import numpy as np
import pytest

from pfl_fast import atomic
from pfl_fast.data.dataset import Dataset
from pfl_fast.engine.results.client_rows import client_names
from pfl_fast.engine.stopping import Interrupted
from tests.engine import small_experiments as small
from tests.engine.test_resume import StopAfter

pytestmark = pytest.mark.usefixtures("one_core")


def rows_of(folder):
    with (folder / "clients.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def untimed_rows(folder):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows_of(folder)]


def test_no_column_is_lost_if_the_untrained_model_is_tested_first(tmp_path):
    with small.trained(
        "fedcp", tests=5, out=tmp_path / "run", eval_initial=True, metrics="per_class_accuracy"
    ) as running:
        rows = rows_of(tmp_path / "run")
    assert [(r["round"], r["client"]) for r in rows] == [(str(n), str(c)) for n in range(3) for c in range(5)]
    first, last = rows[0], rows[-1]
    assert first["train_loss"] == first["recorded"] == first["test_loss_after_local"] == ""
    assert float(last["train_loss"]) > 0
    for when in ("after_agg", "after_local"):
        assert 0 <= float(last[f"test_accuracy_{when}"]) <= 1
        assert len(json.loads(last[f"test_per_class_accuracy_{when}"])) == small.CLASSES
    recorded = json.loads(last["recorded"])
    assert recorded
    assert recorded.keys() <= running.records[-1].keys()


def test_means_over_clients_equal_the_record(tmp_path):
    with small.trained("local", tests=5, validation=2, out=tmp_path / "run", rounds=1) as running:
        rows, record = rows_of(tmp_path / "run"), running.records[0]
    for name in ("test_accuracy_after_agg", "validation_loss_after_local", "test_auc_after_agg"):
        weights = [int(r[f"{name.split('_')[0]}_samples"]) for r in rows]
        assert np.average([float(r[name]) for r in rows], weights=weights) == pytest.approx(record[name])


def test_clients_csv_is_only_appended_to(tmp_path, monkeypatch):
    running, rows = small.experiment("fedcp", out=tmp_path / "run", rounds=3), []
    really_append, really_write = atomic.append, atomic.write_bytes

    def append(target, data, **options):
        if target == tmp_path / "run" / "clients.csv":
            rows.append(data.count(b"\n"))
        really_append(target, data, **options)

    def write(target, data):
        if target.name == "clients.csv":
            rows.append((target.parent.name, data.count(b"\n")))
        really_write(target, data)

    monkeypatch.setattr(atomic, "append", append)
    monkeypatch.setattr(atomic, "write_bytes", write)
    running.run()
    running.close()
    assert rows == [("checkpoint", 1), ("run", 1), 5, 5, 5], "the header, then the clients of each round"


def test_a_resumed_run_has_the_rows_of_an_uninterrupted_one(tmp_path):
    small.image_experiment("fedcp", out=tmp_path / "whole").run()
    stopped = small.image_experiment("fedcp", out=tmp_path / "run", checkpoint_seconds=1000)
    rounds = stopped.rounds()
    next(rounds)
    stopped.listeners[0].save(stopped)
    next(rounds)  # rows of round 2 are in the file, but not in a checkpoint
    stopped.close()
    assert {r["round"] for r in rows_of(tmp_path / "run")} == {"1", "2"}
    small.resume_image_experiment(tmp_path / "run").run()
    assert untimed_rows(tmp_path / "run") == untimed_rows(tmp_path / "whole")


def test_a_run_stopped_in_the_first_round_keeps_its_header(tmp_path):
    stopped = small.image_experiment("fedcp", out=tmp_path / "run")
    stopped.listeners.append(StopAfter(stopped, 2))
    with pytest.raises(Interrupted):
        stopped.run()
    small.resume_image_experiment(tmp_path / "run").run()
    assert [int(r["round"]) for r in rows_of(tmp_path / "run")] == [n for n in (1, 2, 3) for _ in range(6)]


def with_domains(domain, train):
    y = np.zeros(len(domain), dtype=np.int64)
    x = np.zeros((len(y), 2), dtype=np.float32)
    domains = ("mnist", "usps", "svhn, cropped")
    data = Dataset("d", x, y, ("a",), np.zeros(len(y), dtype=bool), domain=np.array(domain), domains=domains)
    return type(
        "Data", (), {"dataset": data, "partition": type("P", (), {"train": tuple(map(np.array, train)), "names": ()})}
    )


def test_names_and_domains_of_clients():
    names = client_names(with_domains([0, 0, 1, 1, 2, 2], [[0, 1], [2], [3], [4, 5], [1, 4]]))
    assert [n["client_name"] for n in names] == ["mnist", "usps 1", "usps 2", "svhn, cropped", "client 4"]
    assert [n["domain"] for n in names] == ["mnist", "usps", "usps", "svhn, cropped", "mnist+svhn, cropped"]


def test_names_without_domains():
    assert client_names(small.experiment("local").data)[1] == {"client_name": "client 1", "domain": ""}
