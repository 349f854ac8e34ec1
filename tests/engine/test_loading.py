"""Runs opened to use their models, without their data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pfl_fast.engine.results.run_folder import RunFolderError
from pfl_fast.errors import ConfigError
from pfl_fast.experiment import Experiment
from tests.engine import small_experiments as small


@pytest.fixture
def run(tmp_path):
    """Folder and experiment of a run on data that is nowhere else."""
    data = replace(small.images(60, (8, 8, 2)), source="imported")  # whose contents a resumed run checks
    running = Experiment(
        "fedcp",
        dataset=data,
        partition=small.partition_of([8] * 4),
        model="mlp",
        rounds=1,
        log=str,
        out=tmp_path / "run",
    )
    running.run()
    return tmp_path / "run", running


def contents(folder):
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


def test_models_equal_those_of_the_run_without_its_data(run):
    folder, running = run
    before, x = contents(folder), torch.randn(3, 2, 8, 8)
    loaded = Experiment.load(folder)
    for client in range(4):
        assert torch.equal(loaded.client(client)(x), running.client(client)(x))
    assert loaded.client_names == [f"client {client}" for client in range(4)]
    assert (loaded.records, loaded.state.rounds_done) == (running.records, 1)
    assert loaded.data.dataset.classes == running.data.dataset.classes
    assert contents(folder) == before
    with pytest.raises(ConfigError, match=r"Experiment\.resume continues it"):
        loaded.run()
    with pytest.raises(ConfigError, match="data=True"):
        loaded.test()


def test_tests_equal_those_of_the_run(run):
    folder, running = run
    loaded = Experiment.load(folder, data=True, dataset=running.dataset, partition=running.partition)
    scores = [score["test"] for score in loaded.test().values()]
    record = running.records[-1]
    assert sum(s.correct for s in scores) / sum(s.samples for s in scores) == record["test_accuracy_after_agg"]


@pytest.mark.parametrize("method", ["fedavg", "per-fedavg"])
def test_tests_after_the_final_round_equal_those_of_the_run(method, tmp_path):
    options = {"dataset": "synthetic", "samples": 200, "image_size": 8, "clients": 3, "model": "mlp", "rounds": 1}
    running = Experiment(method, finetune_epochs=1, out=tmp_path / "run", log=str, **options)
    running.run()
    loaded = Experiment.load(tmp_path / "run", log=str, data=True)
    scores = [score["test"] for score in loaded.test().values()]
    correct, samples = sum(s.correct for s in scores), sum(s.samples for s in scores)
    assert correct / samples == running.records[-1]["test_accuracy_after_local"]
    if method == "per-fedavg":
        with pytest.raises(ConfigError, match="adapts a model to its client's samples"):
            Experiment.load(tmp_path / "run", log=str).client(0)


def test_clients_have_names(run):
    folder, _ = run
    loaded = Experiment.load(folder)
    assert [loaded.client_number(name) for name in ("client 2", "2", 2)] == [2, 2, 2]
    with pytest.raises(ConfigError, match="did you mean 'client 1'"):
        loaded.client("clint 1")
    with pytest.raises(ConfigError, match="from 0 to 3"):
        loaded.client("7")


@pytest.mark.parametrize("text", [None, "{", "[]", '{"shape": [3]}'])
def test_a_damaged_description_is_named_and_made_again(run, text):
    folder, running = run
    file = folder / "data.json"
    good = file.read_text()
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(RunFolderError, match=r"data\.json: missing or damaged"):
        Experiment.load(folder)
    objects = {"dataset": running.dataset, "partition": running.partition}
    Experiment.resume(folder, rounds=2, log=str, **objects).run()
    assert file.read_text() == good
    assert np.isfinite(Experiment.load(folder).client(0)(torch.zeros(1, 2, 8, 8)).detach().numpy()).all()
