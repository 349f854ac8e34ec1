"""Results of a client: the report of its local training, and its scores in tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Value = float | list[float | None] | None  # a metric's value as JSON holds it


@dataclass
class LocalReport:
    """Report of a client's local training.

    Attributes:
        client: number of the client.
        samples: number of samples trained on, over all epochs.
        steps: number of steps.
        loss: mean loss over samples.
        recorded: recorded quantities of the method, mean over samples.
        problem: description of the first value that was not finite, or None.
        seconds: seconds of local training, without tests; clients of a stack have equal shares.
        data_seconds: seconds spent loading batches.
        test_seconds: seconds spent testing after local training.
    """

    client: int
    samples: int = 0
    steps: int = 0
    loss: float = 0.0
    recorded: dict[str, float] = field(default_factory=dict)
    problem: str | None = None
    seconds: float = 0.0
    data_seconds: float = 0.0
    test_seconds: float = 0.0

    def add(self, size: int, loss: float, recorded: dict[str, float]) -> None:
        """Adds one step on ``size`` samples to the running means."""
        self.samples += size
        self.steps += 1
        share = size / self.samples
        self.loss += (loss - self.loss) * share
        for name, value in recorded.items():
            before = self.recorded.get(name, 0.0)
            self.recorded[name] = before + (value - before) * share
        if self.problem is None and not math.isfinite(loss):
            self.problem = f"the loss of step {self.steps} is {loss}"


@dataclass(frozen=True)
class Score:
    """Result of a model on a set of samples.

    Attributes:
        samples: number of samples.
        correct: number of correctly classified samples.
        metrics: values by name of the metric.
    """

    samples: int
    correct: int
    metrics: dict[str, Value] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Fraction of correct samples; NaN without samples."""
        return self.correct / self.samples if self.samples else math.nan

    @property
    def loss(self) -> float:
        """Mean cross entropy; 0 without samples."""
        value = self.metrics.get("loss")
        return value if isinstance(value, float) else 0.0


Scores = Mapping[int, Mapping[str, Score]]  # by client, by split
Bests = dict[str, dict[int, float]]  # best accuracies by name, by client
