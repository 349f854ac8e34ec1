import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import label_binarize

from pfl_fast.engine.results.metrics import Score, last_mean, micro_auc, score, summarise


def by_sklearn(probabilities, y):
    classes = probabilities.shape[1]
    right = torch.nn.functional.one_hot(y, classes).numpy()
    if classes > 2:
        assert (label_binarize(y.numpy(), classes=range(classes)) == right).all()
    return roc_auc_score(right.ravel(), probabilities.numpy().ravel())


@given(st.integers(1, 40), st.integers(2, 7), st.integers(0, 1000), st.booleans())
def test_auc_is_sklearns(count, classes, seed, ties):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    if ties:
        logits = logits.round()
    y = torch.randint(classes, (count,), generator=generator)
    probabilities = logits.softmax(1)
    assert micro_auc(probabilities, y) == pytest.approx(by_sklearn(probabilities, y), abs=1e-12)


def test_auc_of_equal_scores_is_a_half():
    assert micro_auc(torch.full((5, 3), 1 / 3), torch.tensor([0, 1, 2, 0, 1])) == pytest.approx(0.5)


def test_auc_when_all_samples_are_of_one_class():
    probabilities = torch.tensor([[0.6, 0.4], [0.7, 0.3]])
    assert micro_auc(probabilities, torch.tensor([0, 0])) == pytest.approx(1.0)
    assert micro_auc(probabilities, torch.tensor([1, 1])) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "probabilities",
    [torch.zeros(0, 3), torch.ones(4, 1), torch.tensor([[math.nan, 0.5]]), torch.tensor([[1.0, math.inf]])],
)
def test_auc_without_a_value(probabilities):
    assert micro_auc(probabilities, torch.zeros(len(probabilities), dtype=torch.int64)) is None


def test_score_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], dtype=torch.float64)
    got = score(logits, torch.tensor([0, 0, 1]))
    losses = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(1)), math.log(1 + math.exp(3))]
    assert (got.samples, got.correct, got.accuracy) == (3, 1, pytest.approx(1 / 3))
    assert got.loss == pytest.approx(sum(losses) / 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_numbers_do_no_harm_and_no_good(value):
    """A model that says NaN is not right, whatever the class."""
    logits = torch.tensor([[value, value, value], [0.0, 1.0, 0.0]])
    for label in range(3):
        got = score(logits, torch.tensor([label, 1]))
        assert (got.correct, got.auc) == (1, None)


def test_score_of_nothing():
    got = score(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert (got.samples, got.correct, got.auc) == (0, 0, None)
    assert math.isnan(got.loss)
    assert math.isnan(got.accuracy)


def test_both_reductions():
    scores = [Score(10, 5, 1.0, 0.5), Score(30, 30, 2.0, None), Score(0, 0, math.nan, None), Score(40, 0, 0.5, 0.8)]
    got = summarise(scores)
    assert got.by_sample == pytest.approx(35 / 80)
    assert got.by_client == pytest.approx((0.5 + 1 + 0) / 3)
    assert got.spread == pytest.approx(math.sqrt((0 + 0.25 + 0.25) / 3))
    assert got.loss == pytest.approx((10 + 60 + 20) / 80)
    assert got.auc == pytest.approx((0.5 * 10 + 0.8 * 40) / 50)


def test_reductions_of_nobody():
    got = summarise([Score(0, 0, 0.0, None)])
    assert (got.by_sample, got.by_client, got.spread, got.loss, got.auc) == (None,) * 5


def test_last_mean():
    assert last_mean([]) is None
    assert last_mean([3.0]) == 3
    assert last_mean([100.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == 3
