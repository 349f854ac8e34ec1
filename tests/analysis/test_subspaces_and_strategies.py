"""Analyses of FedAFK, FediOS and PartialFed."""

import json

import numpy as np
import pytest
import torch

from pfl_fast import Experiment
from pfl_fast.analysis import analyse
from pfl_fast.analysis.analyse import compute
from pfl_fast.analysis.fedios import energy, principal_angles
from pfl_fast.analysis.partialfed import stages_of
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun
from pfl_fast.errors import ConfigError

OPTIONS = AnalysisOptions(samples=20)


def test_angles_and_energies_of_known_planes():
    q, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    tilted = q[:, :2] * np.cos(0.3) + q[:, 2:4] * np.sin(0.3)
    np.testing.assert_allclose(principal_angles(q[:, :2], tilted), np.degrees([0.3, 0.3]))
    f = torch.randn(5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert sum(energy(f, q[:, i : i + 2]) for i in (0, 2, 4)) == pytest.approx(1)


def test_subspaces_of_fedios_are_orthogonal(runs):
    with FinishedRun(runs("fedios", model="mlp")) as run:
        rows = np.array([row[1:] for row in compute("subspaces", run, OPTIONS).rows])
    np.testing.assert_allclose(rows[:, 4:], 90, atol=1e-2)
    assert (rows[:, :4] > 0).all()
    assert (rows[:, :4] < 1).all()


def test_mu_is_that_of_the_last_checkpoint_and_the_rounds(runs):
    with FinishedRun(runs("fedafk", model="mlp")) as run:
        result = compute("mixing", run, OPTIONS)
        assert result.columns[1:] == ["round 1", "round 2", "end"]
        assert result.rows[1][3] == pytest.approx(float(run.tensors(1)["mixing.mu"]))
        assert all(0 <= value <= 1 for row in result.rows for value in row[1:])


def test_strategy_is_the_softmax_of_the_logits(runs):
    with FinishedRun(runs("partialfed-adaptive", model="mlp", finetune_epochs=0)) as run:
        rows = compute("loaded-tensors", run, OPTIONS).rows
        expected = run.tensors(2)["policy.logits"].softmax(1)[:, 1]
        assert [row[4] for row in rows] == pytest.approx(expected.tolist())
        strategy = compute("strategy", run, OPTIONS)
        assert strategy.columns[2:] == ["fc1", "fc2", "fc"]
        assert len(strategy.rows) == 2 * 3
        assert strategy.rows[0][2:] == pytest.approx([0.5, 0.5, 0.5], abs=0.05)  # starts in the middle


def test_stages_of_a_resnet():
    groups = ["extractor.conv1", "extractor.bn1", "extractor.layer1.0.conv1", "extractor.layer4.1.bn2", "head"]
    assert stages_of(groups) == {"s1": [0, 1, 2], "s4": [3], "fc": [4]}


def test_fixed_strategy_names_the_loaded_tensors(runs, tmp_path):
    folder = runs("partialfed-fix", model="mlp", strategy="fc", finetune_epochs=0)
    with FinishedRun(folder) as run:
        rows = compute("loaded-tensors", run, OPTIONS).rows
        assert {row[0] for row in rows if row[1] == "yes"} == {"head.weight", "head.bias"}
        result = compute("global-accuracy", run, OPTIONS)
        assert result.rows[0][1] == run.experiment.records[0]["test_accuracy_global"]
    with pytest.raises(ConfigError, match="strategy: is an analysis of partialfed-adaptive; this run trained"):
        analyse(folder, ["strategy"], tmp_path)


def test_sweep_averages_the_seeds_of_each_value(tmp_path):
    for lam, seed in ((0.0, 0), (5.0, 0), (5.0, 1)):
        out = tmp_path / "runs" / f"{lam}-{seed}"
        values = {"dataset": "digits", "clients": 3, "rounds": 1, "model": "mlp", "lam": lam, "seed": seed}
        Experiment("fedcp", out=out, log=lambda _: None, **values).run()
    written = analyse(tmp_path / "runs", ["sweep"])
    table = json.loads(written["sweep"][0].read_text())
    assert table["columns"][0] == "lam"
    assert [row[:2] for row in table["rows"]] == [[0.0, 1], [5.0, 2]]
    accuracies = [
        100 * json.loads((tmp_path / "runs" / f"5.0-{seed}" / "summary.json").read_text())["protocol"]["accuracy"]
        for seed in (0, 1)
    ]
    assert table["rows"][1][2:] == pytest.approx([np.mean(accuracies), np.std(accuracies, ddof=1)], rel=1e-4)
    with pytest.raises(ConfigError, match="needs a folder that holds several runs"):
        analyse(tmp_path / "runs" / "5.0-0", ["sweep"])
