"""FedPick's analyses: values by hand and by scikit-learn, and what they say about a run."""

import numpy as np
import pytest
from sklearn.feature_selection import f_classif
from sklearn.neighbors import KNeighborsClassifier

from pfl_fast.analysis import ANALYSES, features, suitable
from pfl_fast.analysis.analyse import compute
from pfl_fast.analysis.run import AnalysisOptions, FinishedRun


def samples(seed, n=60, d=8):
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    z = random.normal(size=(n, d)) + y[:, None] * np.arange(d) / 4
    return z, y


def test_fisher_score_is_the_f_statistic_up_to_degrees_of_freedom():
    z, y = samples(0)
    np.testing.assert_allclose(features.fisher_score(z, y), f_classif(z, y)[0] * (3 - 1) / (60 - 3))


def test_probe_keeps_the_best_features():
    train, test = samples(0), samples(1)
    accuracies = features.knn_probe(train, test, (0.25, 1.0))
    best = np.argsort(-f_classif(*train)[0])[:2]
    for found, kept in zip(accuracies, (best, range(8)), strict=True):
        expected = (
            KNeighborsClassifier(10).fit(train[0][:, list(kept)], train[1]).score(test[0][:, list(kept)], test[1])
        )
        assert found == expected


def test_sparsity_of_zeros_signs_and_empty_rows():
    assert features.sparsity_ratio([[-1.0, 1.0]]) == 0.5
    assert features.sparsity_ratio([[-1.0, 1.0]], absolute=True) == 0
    assert features.sparsity_ratio([[0.0, 0.0]]) == 1


def test_important_features_are_selected_most_often():
    assert features.important_features([[1, 0, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1]]) == {0, 3}


@pytest.mark.parametrize("name", [n for n in suitable("fedpick") if ANALYSES[n].function.startswith("fedpick:")])
def test_analyses_of_a_run(runs, name):
    options = AnalysisOptions(samples=40)
    with FinishedRun(runs("fedpick", model="mlp")) as run:
        result = compute(name, run, options)
        values = np.array([row[1:] for row in result.rows if row[1:]][-3:])
        if name == "sparsity":
            assert [row[0] for row in result.rows] == [1, 1, 1, 2, 2, 2]
            values = np.array([row[2:] for row in result.rows])
            assert not np.array_equal(values[:, 0], values[:, 1])
        if name in ("sparsity", "knn-probe", "selection-ratio", "overlap"):
            assert values.min() >= 0
            assert values.max() <= 1
        if name == "fisher":
            assert (values > 0).all()
        if name == "tsne":
            assert len(result.rows) == min(40, len(run.experiment.data.indices("test", 0)))
