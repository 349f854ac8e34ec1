"""Metrics of a model on a client's samples, and their mean over clients.

A metric is a function ``(logits [n, C], labels [n]) -> value``. The value is a number, a 1-d tensor with one number per
class (NaN: no value), or None without a value. :data:`METRICS` holds the built-in ones; ``--metric module:function``
adds a user's. Built-in metrics return tensors on the device of the logits;
:mod:`pfl_fast.engine.results.scores` does not wait for them, and reads those of many tests at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean, pstdev
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pfl_fast.engine.client_results import Score, Value
from pfl_fast.errors import ConfigError, did_you_mean
from pfl_fast.models import find_object

Metric = Callable[[Tensor, Tensor], Tensor | Value]
UserFunction = Callable[[Tensor, Tensor], float | Tensor | None]


def accuracy(logits: Tensor, labels: Tensor) -> Tensor | None:
    """Fraction of samples whose largest logit is that of their label; logits that are not finite are wrong."""
    return is_correct(logits, labels).sum().double() / len(labels) if len(labels) else None


def loss(logits: Tensor, labels: Tensor) -> Tensor | None:
    """Mean cross entropy."""
    return F.cross_entropy(logits.double(), labels) if len(labels) else None


def auc(logits: Tensor, labels: Tensor) -> Tensor | None:
    """Micro-averaged area under the ROC curve of the softmax probabilities, see :func:`micro_auc`."""
    return micro_auc(logits.softmax(dim=1), labels)


def balanced_accuracy(logits: Tensor, labels: Tensor) -> Tensor | None:
    """Mean recall of the classes that occur in the labels."""
    return per_class_accuracy(logits, labels).nanmean() if len(labels) else None


def macro_f1(logits: Tensor, labels: Tensor) -> Tensor | None:
    """Mean F1 score of the classes that occur in the labels or the predictions."""
    correct, actual = _class_counts(logits, labels)
    predicted = _count(_predictions(logits), logits.shape[1])
    return (2 * correct / (actual + predicted)).nanmean() if len(labels) else None


def per_class_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """``[C]`` recall of every class; NaN for classes that do not occur in the labels."""
    correct, actual = _class_counts(logits, labels)
    return correct / actual


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "loss": loss,
    "auc": auc,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "per_class_accuracy": per_class_accuracy,
}
ALWAYS = ("accuracy", "loss", "auc")  # computed in every run; the others on request
_BUILT_IN = frozenset(METRICS)


class UserMetric:
    """Calls a user's metric. Its errors never end the run: ``log`` receives the first one, and the value is missing."""

    def __init__(self, name: str, function: UserFunction, log: Callable[[str], None]) -> None:
        self.name, self.function, self.log = name, function, log
        self._logged = False

    def __call__(self, logits: Tensor, labels: Tensor) -> Value:
        """Returns the value, or None after an exception or if the value is not finite."""
        try:
            value = _as_value(self.function(logits, labels))
        except Exception as error:  # users' code may raise anything
            self._log(f"{type(error).__name__}: {error}")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._log(f"its value is {value}")
            return None
        return value

    def _log(self, problem: str) -> None:
        if not self._logged:
            self._logged = True
            self.log(f"metric {self.name!r}: {problem}; the value is missing in the results")


def find_metrics(names: Iterable[str], log: Callable[[str], None] = print) -> dict[str, Metric]:
    """Returns the metrics of a run by name: accuracy, loss and AUC, and the requested ones.

    Args:
        names: keys of :data:`METRICS`, or ``"module:function"``, recorded under the function's name.
        log: receives the first error of each user's metric.
    """
    found = {name: METRICS[name] for name in ALWAYS}
    for path in dict.fromkeys(names):
        function: Any = METRICS.get(path)
        if function is None and ":" not in path:
            hint = did_you_mean(path, METRICS) or f"; built in are {', '.join(METRICS)}"
            raise ConfigError(f"metrics: no metric {path!r}{hint}; write your own as 'module:function'")
        name = path.replace(":", ".").rpartition(".")[2]
        if function is None:
            function = find_object(path, "metrics")
            if not callable(function):
                raise ConfigError(f"metrics: {path!r} must be a function (logits, labels), got {function!r}")
            if name in found or name in METRICS:
                raise ConfigError(f"metrics: the name of {path!r} is already that of another metric; rename it")
        found[name] = function if path in _BUILT_IN else UserMetric(name, function, log)
    return found


def pooled(scores: Sequence[Score]) -> Score:
    """Returns accuracy and loss on the union of all samples; other metrics do not follow from their parts.

    >>> pooled([Score(2, 1, {"loss": 0.5}), Score(6, 6, {"loss": 0.1, "auc": 1.0})])
    Score(samples=8, correct=7, metrics={'accuracy': 0.875, 'loss': 0.2})
    """
    samples, correct = sum(score.samples for score in scores), sum(score.correct for score in scores)
    mean_loss = sum(score.loss * score.samples for score in scores if score.samples) / max(samples, 1)
    return Score(samples, correct, {"accuracy": correct / samples if samples else None, "loss": mean_loss})


def micro_auc(probabilities: Tensor, labels: Tensor) -> Tensor | None:
    """Probability that a right (sample, class) pair scores higher than a wrong one; ties count half.

    Equals scikit-learn's ``roc_auc_score(average="micro")``. NaN with scores that are not finite; None without samples,
    or with a single class.

    >>> micro_auc(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    tensor(0.7500, dtype=torch.float64)
    """
    count, classes = probabilities.shape
    if count == 0 or classes < 2:
        return None
    values = probabilities.flatten().double().sort().values
    right = probabilities.gather(1, labels[:, None]).flatten().double()
    lower, upper = torch.searchsorted(values, right), torch.searchsorted(values, right, right=True)
    ranks = (lower + upper + 1).double() / 2  # mean rank of equal scores, from 1
    wins = ranks.sum() - count * (count + 1) / 2
    finite = values[0].isfinite() & values[-1].isfinite()  # NaN is sorted last
    return torch.where(finite, wins / (count * (count * classes - count)), math.nan)


@dataclass(frozen=True)
class Summary:
    """Scores of several clients, reduced to one.

    Attributes:
        by_sample: total correct / total samples.
        by_client: mean of the clients' accuracies.
        spread: standard deviation of the clients' accuracies.
        metrics: means of the other metrics, weighted by samples, over the clients that have a value; per class for
            metrics with one value per class.
    """

    by_sample: float | None = None
    by_client: float | None = None
    spread: float | None = None
    metrics: dict[str, Value] = field(default_factory=dict)


def summarise(scores: Iterable[Score]) -> Summary:
    """Reduces the scores of clients; clients without samples are left out."""
    scores = [s for s in scores if s.samples]
    if not scores:
        return Summary()
    accuracies = [s.accuracy for s in scores]
    names = dict.fromkeys(name for s in scores for name in s.metrics if name != "accuracy")
    return Summary(
        by_sample=sum(s.correct for s in scores) / sum(s.samples for s in scores),
        by_client=fmean(accuracies),
        spread=pstdev(accuracies),
        metrics={name: _mean([s.metrics.get(name) for s in scores], [s.samples for s in scores]) for name in names},
    )


def _predictions(logits: Tensor) -> Tensor:
    """``[n]`` predicted classes; -1 where a logit is not finite."""
    return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns ``[n]`` bool: True where the predicted class is the label."""
    return _predictions(logits) == labels


def _class_counts(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """``[C]`` numbers of correct samples and of all samples of each class, in float64."""
    correct = torch.where(is_correct(logits, labels), labels, -1)
    return _count(correct, logits.shape[1]), _count(labels, logits.shape[1])


def _count(classes: Tensor, number: int) -> Tensor:
    """``[number]`` float64 numbers of samples of each class; -1 is counted nowhere."""
    return (classes[:, None] == torch.arange(number, device=classes.device)).sum(0).double()


def _as_value(result: float | Tensor | None) -> Value:
    if isinstance(result, Tensor) and result.dim() == 1:
        return [x if math.isfinite(x) else None for x in map(float, result.tolist())]
    return None if result is None else float(result)


def _mean(values: Sequence[Value], weights: Sequence[int]) -> Value:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    lists = [value if isinstance(value, list) else [value] for value, _ in known]
    total = [weight for _, weight in known]
    means = [_mean_of_numbers(column, total) for column in zip_longest(*lists)]
    return means if any(isinstance(value, list) for value, _ in known) else means[0] if means else None


def _mean_of_numbers(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None
