"""Scores of clients in tests: computed without waiting for the device, many of them read at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pfl_fast.engine.client_results import Score, Value
from pfl_fast.engine.results.metrics import Metric, UserMetric, is_correct
from pfl_fast.ops import dispatch
from pfl_fast.transfer import read


@dataclass(frozen=True)
class PendingScore:
    """A score whose values may still be on a device.

    Attributes:
        samples: number of samples.
        correct: number of correctly classified samples.
        metrics: values by name of the metric.
    """

    samples: int
    correct: Tensor
    metrics: dict[str, Tensor | Value] = field(default_factory=dict)


def pending_score(logits: Tensor, labels: Tensor, metrics: Mapping[str, Metric]) -> PendingScore:
    """Evaluates ``[n, C]`` logits against ``[n]`` labels; logits may hold NaN or infinite values."""
    found = {name: metric(logits, labels) for name, metric in metrics.items()}
    return PendingScore(len(labels), is_correct(logits, labels).sum(), found)


def pending_scores(outputs: Sequence[tuple[Tensor, Tensor]], metrics: Mapping[str, Metric]) -> list[PendingScore]:
    """Evaluates the logits and labels of several clients.

    On GPUs clients with equally many samples are evaluated together, except by users' metrics: as many launches as for
    one client.
    """
    found: dict[int, PendingScore] = {}
    sizes = [len(labels) for _, labels in outputs]
    for size in dict.fromkeys(sizes):
        rows = [row for row, own in enumerate(sizes) if own == size]
        if size == 0:
            found.update(dict.fromkeys(rows, PendingScore(0, torch.zeros(()))))
            continue
        own = [outputs[row] for row in rows]
        first = own[0][0]
        stacks = first.shape[1] > 1 and dispatch.device_type(first) == "cuda"
        scores = _stacked(own, metrics) if stacks else [pending_score(*output, metrics) for output in own]
        found.update(zip(rows, scores, strict=True))
    return [found[row] for row in range(len(outputs))]


def _stacked(outputs: Sequence[tuple[Tensor, Tensor]], metrics: Mapping[str, Metric]) -> list[PendingScore]:
    """Evaluates clients with equally many samples, at least one, of two or more classes."""
    logits, labels = (torch.stack(tensors) for tensors in zip(*outputs, strict=True))
    batched: Any = torch.vmap
    columns: dict[str, Iterable[Any]] = {
        name: [metric(*output) for output in outputs]
        if isinstance(metric, UserMetric)
        else batched(metric)(logits, labels).unbind()
        for name, metric in metrics.items()
    }
    right = is_correct(logits.flatten(0, 1), labels.flatten()).view(labels.shape).sum(1)
    return [
        PendingScore(labels.shape[1], count, dict(zip(columns, values, strict=True)))
        for count, *values in zip(right.unbind(), *columns.values(), strict=True)
    ]


def read_scores(pending: Sequence[PendingScore]) -> list[Score]:
    """Reads pending scores: all values at once, so that the host waits for each device once."""
    values = [value for p in pending for value in (p.correct, *p.metrics.values()) if isinstance(value, Tensor)]
    numbers = iter(read(values))

    def known(name: str, value: Tensor | Value) -> Value:
        if not isinstance(value, Tensor):
            return value
        found = next(numbers)
        if value.dim():
            return [x if math.isfinite(x) else None for x in found]
        return None if name != "loss" and math.isnan(found[0]) else found[0]

    return [
        Score(p.samples, int(next(numbers)[0]), {name: known(name, value) for name, value in p.metrics.items()})
        for p in pending
    ]


def read_scores_by_split(tests: Sequence[Mapping[str, PendingScore]]) -> list[dict[str, Score]]:
    """Returns the scores of several clients by split; all values are read at once."""
    scores = iter(read_scores([score for by_split in tests for score in by_split.values()]))
    return [{split: next(scores) for split in by_split} for by_split in tests]
