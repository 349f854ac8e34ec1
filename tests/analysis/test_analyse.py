"""The frame: names, refusals, files; and the analyses of every method."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score

from pfl_fast.analysis import ANALYSES, analyse, suitable
from pfl_fast.analysis.analyse import function_of
from pfl_fast.analysis.classes import class_accuracy
from pfl_fast.analysis.fairness import gini
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun
from pfl_fast.analysis.similarity import cka, linear_cka
from pfl_fast.errors import ConfigError
from pfl_fast.methods import METHODS


@pytest.mark.parametrize("name", ANALYSES)
def test_every_name_has_a_function_and_known_methods(name):
    assert callable(function_of(ANALYSES[name]))
    assert set(ANALYSES[name].methods) <= set(METHODS)


def test_all_writes_the_files_of_every_suitable_analysis(runs, tmp_path):
    folder = runs("fedavg")
    written = analyse(folder, out=tmp_path, formats=("svg", "png"))
    assert sorted(written) == sorted(name for name in suitable("fedavg") if not ANALYSES[name].slow)
    for name in written:
        table = json.loads((tmp_path / f"{name}.json").read_text())
        assert list(table) == ["title", "caption", "columns", "rows"]
        assert "Data: digits, 3 clients" in table["caption"]
        assert "2 rounds, seed 0" in table["caption"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            assert len(list(csv.reader(file))) == 1 + len(table["rows"])
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
    assert not (folder / "run.lock").exists()


def test_equal_runs_give_equal_figures(runs, tmp_path):
    for out in ("a", "b"):
        analyse(runs("fedavg"), ["fairness"], tmp_path / out)
    assert (tmp_path / "a" / "fairness.svg").read_bytes() == (tmp_path / "b" / "fairness.svg").read_bytes()


def test_wrong_requests_are_refused_with_the_reason(runs, tmp_path):
    with pytest.raises(ConfigError, match="no analysis 'fairnes'; did you mean"):
        analyse(runs("fedavg"), ["fairnes"], tmp_path)
    bare = runs("fedavg", snapshots=0)
    with pytest.raises(ConfigError, match="drift: the run kept no models of its rounds; train it with --snapshots 10"):
        analyse(bare, ["drift"], tmp_path)
    left_out = {}
    analyse(bare, ["all"], tmp_path, done=lambda name, _, reason: left_out.update({name: reason}))
    assert "kept no models" in left_out["drift"]
    assert left_out["fairness"] == ""


def test_heatmap_agrees_with_scikit_learn():
    labels, predicted = np.random.default_rng(0).integers(0, 4, (2, 60))
    expected = recall_score(labels, predicted, average=None, labels=range(4))
    np.testing.assert_allclose(class_accuracy(predicted, labels, 4), expected)


def test_gini_is_the_mean_absolute_difference_over_twice_the_mean():
    values = np.random.default_rng(0).random(7)
    expected = np.abs(values[:, None] - values).sum() / (2 * 49 * values.mean())
    assert gini(values) == pytest.approx(expected)


def test_cka_is_invariant_to_rotations_and_falls_with_noise():
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert linear_cka(x, 2 * x @ rotation + 3) == pytest.approx(1)
    assert linear_cka(x, torch.randn(50, 4, generator=torch.Generator().manual_seed(2))) < 0.2


def test_clients_differ_only_after_local_training(runs):
    with FinishedRun(runs("fedavg", snapshots=0)) as run:
        equal = np.array([row[1:] for row in cka(run, AnalysisOptions(samples=60)).rows])
    with FinishedRun(runs("fedavg")) as run:
        differ = np.array([row[1:] for row in cka(run, AnalysisOptions(samples=60)).rows])
    np.testing.assert_allclose(equal, 1)
    assert differ[~np.eye(3, dtype=bool)].max() < 1 - 1e-6
