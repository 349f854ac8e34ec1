import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, recall_score, roc_auc_score
from sklearn.preprocessing import label_binarize

from pfl_fast.engine.client_results import Score
from pfl_fast.engine.results.metrics import METRICS, Summary, find_metrics, micro_auc, summarise
from pfl_fast.engine.results.scores import PendingScore, pending_score, pending_scores, read_scores
from pfl_fast.errors import ConfigError
from pfl_fast.ops import dispatch


def by_sklearn(probabilities, y):
    classes = probabilities.shape[1]
    right = torch.nn.functional.one_hot(y, classes).numpy()
    if classes > 2:
        assert (label_binarize(y.numpy(), classes=range(classes)) == right).all()
    return roc_auc_score(right.ravel(), probabilities.numpy().ravel())


@given(st.integers(1, 40), st.integers(2, 7), st.integers(0, 1000), st.booleans())
def test_auc_equals_scikit_learn(count, classes, seed, ties):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    if ties:
        logits = logits.round()
    y = torch.randint(classes, (count,), generator=generator)
    probabilities = logits.softmax(1)
    assert float(micro_auc(probabilities, y)) == pytest.approx(by_sklearn(probabilities, y), abs=1e-12)


def test_auc_of_equal_scores_is_a_half():
    assert float(micro_auc(torch.full((5, 3), 1 / 3), torch.tensor([0, 1, 2, 0, 1]))) == pytest.approx(0.5)


def test_auc_when_all_samples_are_of_one_class():
    probabilities = torch.tensor([[0.6, 0.4], [0.7, 0.3]])
    assert float(micro_auc(probabilities, torch.tensor([0, 0]))) == pytest.approx(1.0)
    assert float(micro_auc(probabilities, torch.tensor([1, 1]))) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "probabilities",
    [
        torch.zeros(0, 3),
        torch.ones(4, 1),
        torch.tensor([[math.nan, 0.5]]),
        torch.tensor([[1.0, math.inf]]),
        torch.tensor([[-math.inf, 0.0]]),
    ],
)
def test_auc_is_none_where_it_is_undefined(probabilities):
    labels = torch.zeros(len(probabilities), dtype=torch.int64)
    score = PendingScore(len(labels), torch.tensor(0), {"auc": micro_auc(probabilities, labels)})
    assert read_scores([score])[0].metrics == {"auc": None}


def measured(logits, labels, *names):
    return score(logits, labels, find_metrics(names))


def score(logits, labels, metrics):
    return read_scores([pending_score(logits, labels, metrics)])[0]


def test_score_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], dtype=torch.float64)
    got = measured(logits, torch.tensor([0, 0, 1]))
    losses = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(1)), math.log(1 + math.exp(3))]
    assert (got.samples, got.correct, got.accuracy) == (3, 1, pytest.approx(1 / 3))
    assert got.loss == got.metrics["loss"] == pytest.approx(sum(losses) / 3)
    assert list(got.metrics) == ["accuracy", "loss", "auc"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_sample_with_nonfinite_logits_counts_as_wrong(value):
    logits = torch.tensor([[value, value, value], [0.0, 1.0, 0.0]])
    for label in range(3):
        got = measured(logits, torch.tensor([label, 1]), *METRICS)
        assert (got.correct, got.metrics["accuracy"], got.metrics["auc"]) == (1, 0.5, None)
        assert got.metrics["per_class_accuracy"][1] == (0.5 if label == 1 else 1.0)


def test_score_without_samples():
    got = measured(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), *METRICS)
    assert (got.samples, got.correct, got.loss) == (0, 0, 0)
    assert math.isnan(got.accuracy)
    assert got.metrics.pop("per_class_accuracy") == [None] * 3
    assert set(got.metrics.values()) == {None}


@given(st.integers(1, 40), st.integers(2, 7), st.integers(0, 1000))
def test_metrics_by_class_equal_scikit_learn(count, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator)
    y = torch.randint(classes, (count,), generator=generator)
    got = measured(logits, y, "balanced_accuracy", "macro_f1", "per_class_accuracy").metrics
    predicted = logits.argmax(1)
    recalls = recall_score(y, predicted, labels=range(classes), average=None, zero_division=math.nan)
    assert got["macro_f1"] == pytest.approx(f1_score(y, predicted, average="macro"))
    assert got["per_class_accuracy"] == [None if math.isnan(r) else pytest.approx(r) for r in recalls]
    assert got["balanced_accuracy"] == pytest.approx(np.nanmean(recalls))


def top_2(logits, labels):
    return (logits.topk(2).indices == labels[:, None]).any(1).double().mean()


def raises(*_):
    raise IndexError("no such class")


def not_a_number(*_):
    return math.nan


def text(*_):
    return "high"


def auc(*_):
    return 0.5


HERE = "tests.engine.test_metrics"
LOGITS, LABELS = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), torch.tensor([1, 2])


def test_a_metric_given_as_a_function():
    assert measured(LOGITS, LABELS, f"{HERE}:top_2").metrics["top_2"] == 0.5


@pytest.mark.parametrize(
    ("name", "message"), [("raises", "IndexError: no such class"), ("not_a_number", "nan"), ("text", "ValueError")]
)
def test_a_metric_that_fails_is_reported_once_and_missing(name, message):
    messages = []
    metrics = find_metrics([f"{HERE}:{name}"], messages.append)
    assert [score(LOGITS, LABELS, metrics).metrics[name] for _ in range(3)] == [None] * 3
    assert len(messages) == 1
    assert name in messages[0]
    assert message in messages[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("macro_f2", r"metrics: no metric 'macro_f2'; did you mean 'macro_f1'\?"),
        ("kappa", "built in are accuracy, loss"),
        ("no_such_module:f", "metrics 'no_such_module:f': cannot import"),
        (f"{HERE}:top_3", "did you mean 'top_2'"),
        (f"{HERE}:HERE", "must be a function"),
        (f"{HERE}:auc", "rename it"),
    ],
)
def test_an_unusable_metric_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        find_metrics([name])


def test_means_over_samples_and_over_clients():
    scores = [
        Score(10, 5, {"loss": 1.0, "auc": 0.5, "per_class": [1.0, None, None]}),
        Score(30, 30, {"loss": 2.0, "auc": None, "per_class": [0.0, 0.5, None]}),
        Score(0, 0, {"loss": math.nan}),
        Score(40, 0, {"loss": 0.5, "auc": 0.8, "per_class": None}),
    ]
    got = summarise(scores)
    assert got.by_sample == pytest.approx(35 / 80)
    assert got.by_client == pytest.approx((0.5 + 1 + 0) / 3)
    assert got.spread == pytest.approx(math.sqrt((0 + 0.25 + 0.25) / 3))
    assert got.metrics["loss"] == pytest.approx((10 + 60 + 20) / 80)
    assert got.metrics["auc"] == pytest.approx((0.5 * 10 + 0.8 * 40) / 50)
    assert got.metrics["per_class"] == [pytest.approx(10 / 40), 0.5, None]


def test_a_metric_without_any_value_has_no_mean():
    assert summarise([Score(1, 1, {"auc": None}), Score(2, 1, {"auc": None})]).metrics == {"auc": None}


def test_reductions_without_samples():
    assert summarise([Score(0, 0)]) == Summary(None, None, None, {})


def test_clients_with_equally_many_samples_are_evaluated_together_on_cuda(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    outputs = [(torch.randn(n, 5, generator=draw), torch.randint(0, 5, (n,), generator=draw)) for n in (7, 3, 7, 2, 3)]
    outputs[2][0][4, 1] = math.nan
    metrics = find_metrics([*METRICS, "tests.engine.test_metrics:first_label"])
    expected = [read_scores([pending_score(*output, metrics)])[0] for output in outputs]
    assert repr(read_scores(pending_scores(outputs, metrics))) == repr(expected), "one by one"
    monkeypatch.setattr(dispatch, "device_type", lambda _: "cuda")
    found = read_scores(pending_scores(outputs, metrics))
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.samples, mine.correct) == (theirs.samples, theirs.correct)
        assert mine.metrics.keys() == theirs.metrics.keys()
        for name, value in theirs.metrics.items():
            one, other = (np.array(v, dtype=float) for v in (mine.metrics[name], value))  # None is NaN
            np.testing.assert_allclose(one, other, rtol=1e-12, err_msg=name)


def first_label(_logits, labels):
    return labels[0].double()
