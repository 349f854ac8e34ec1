"""What is measured on a client's samples, and how clients' numbers become one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """A model's result on some samples.

    Attributes:
        samples: how many.
        correct: of them.
        loss: mean cross entropy.
        auc: area under the ROC curve over all (sample, class) pairs; None where it has no value.
    """

    samples: int
    correct: int
    loss: float
    auc: float | None

    @property
    def accuracy(self) -> float:
        """Share of correct samples."""
        return self.correct / self.samples if self.samples else math.nan


def pooled(scores: Sequence[Score]) -> Score:
    """One score of all samples together; their AUC cannot be had from the parts.

    >>> pooled([Score(2, 1, 0.5, None), Score(6, 6, 0.1, 1.0)])
    Score(samples=8, correct=7, loss=0.2, auc=None)
    """
    samples = sum(score.samples for score in scores)
    loss = sum(score.loss * score.samples for score in scores if score.samples) / max(samples, 1)
    return Score(samples, sum(score.correct for score in scores), loss, None)


def score(logits: Tensor, y: Tensor) -> Score:
    """Measures ``[n, C]`` logits against ``[n]`` labels; never raises, whatever the logits hold.

    A sample whose logits are not all finite is not correct, whatever its class.
    """
    correct = int(((logits.argmax(dim=1) == y) & logits.isfinite().all(dim=1)).sum())
    loss = float(F.cross_entropy(logits.double(), y)) if len(y) else math.nan
    return Score(len(y), correct, loss, micro_auc(logits.softmax(dim=1), y))


def micro_auc(probabilities: Tensor, y: Tensor) -> float | None:
    """Probability that a right (sample, class) pair scores higher than a wrong one; ties count half.

    What scikit-learn calls ``average="micro"``. None with NaN scores, no samples or a single class.

    >>> micro_auc(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.75
    """
    count, classes = probabilities.shape
    if count == 0 or classes < 2 or not bool(torch.isfinite(probabilities).all()):
        return None
    values, order = probabilities.flatten().double().sort()
    _, group, sizes = values.unique_consecutive(return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()  # ranks may pass what float32 can count
    rank = (last - (sizes - 1) / 2.0)[group]  # the mean rank of equal scores, from 1
    right = F.one_hot(y, classes).flatten().bool()[order]
    wins = rank[right].sum() - count * (count + 1) / 2
    return float(wins / (count * (count * classes - count)))


@dataclass(frozen=True)
class Summary:
    """Clients' scores as one.

    Attributes:
        by_sample: total correct / total samples.
        by_client: mean of the clients' accuracies.
        spread: their standard deviation.
        loss: mean over samples.
        auc: mean over samples of the clients' AUCs that have a value.
    """

    by_sample: float | None
    by_client: float | None
    spread: float | None
    loss: float | None
    auc: float | None


def summarise(scores: Iterable[Score]) -> Summary:
    """Both reductions over clients, those without samples left out."""
    scores = [s for s in scores if s.samples]
    if not scores:
        return Summary(None, None, None, None, None)
    total = sum(s.samples for s in scores)
    accuracies = [s.accuracy for s in scores]
    with_auc = [(s.auc, s.samples) for s in scores if s.auc is not None]
    return Summary(
        by_sample=sum(s.correct for s in scores) / total,
        by_client=fmean(accuracies),
        spread=pstdev(accuracies),
        loss=sum(s.loss * s.samples for s in scores) / total,
        auc=sum(a * n for a, n in with_auc) / sum(n for _, n in with_auc) if with_auc else None,
    )


def last_mean(values: Sequence[float], count: int = 5) -> float | None:
    """Mean of the last ``count`` values."""
    return fmean(values[-count:]) if values else None
