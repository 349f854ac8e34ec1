"""Phases of local training: what is stepped, by which loss, for how long, and what is special about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from pfl_fast.methods.parts import Client, Tensors


@dataclass
class Batch:
    """What a loss or a prediction sees.

    Attributes:
        x: ``[b, ...]`` samples.
        y: ``[b]`` int64 labels.
        seed: int64 scalar, the key of this step's noise for this client.
        once: what the phase's ``once`` gave for these samples.
    """

    x: Tensor
    y: Tensor
    seed: Tensor
    once: Tensors = field(default_factory=dict)


Loss = Callable[[Client, Batch], tuple[Tensor, Tensors]]


@dataclass(frozen=True)
class Once:
    """Something about a sample that local training does not change, such as the features of a frozen extractor.

    The engine computes it once per round in large batches, and step by step only where the samples of a batch influence
    each other (BatchNorm) or change (augmentation, dropout).

    Attributes:
        part: the one part it uses, not trained in the phase.
        compute: ``(client, x) -> [b, ...]``.
    """

    part: str
    compute: Callable[[Client, Tensor], Tensor]


@dataclass(frozen=True)
class Taken:
    """What a client has done in a phase so far.

    Attributes:
        steps: how many batches it has stepped on, an integer scalar.
        lr: the learning rate of the round.
        loss: of its last step.
    """

    steps: Tensor
    lr: float
    loss: Tensor


class Slope(Protocol):
    """Gradients of the phase's loss, by name, at other values of what it trains, on some samples of the batch."""

    def __call__(self, values: Tensors, samples: slice = ..., noted: bool = True) -> Tensors:
        """At ``values``, on ``samples``; the last loss that is ``noted`` is the one that is reported for the step."""
        ...


@dataclass(frozen=True)
class Phase:
    """A stretch of local training.

    Attributes:
        train: names of the parts that are stepped; the others stay as they are.
        loss: ``(client, batch) -> (loss, recorded)``; what is recorded (scalars by name) is averaged over the samples
            of the round, per client, and goes into the results.
        epochs: passes over the client's samples.
        once: by name, what to put into ``batch.once``.
        turns: parts that are stepped in the first batch of an epoch, in the second and so on, then from the beginning
            again; none: all of ``train`` in every batch.
        adam: parts that Adam steps instead of SGD, and its learning rate; its moments start from zero in each round.
        sgd: ``lr``, ``momentum`` or ``weight_decay`` in this phase, in the place of the run's.
        pull: parts that are pulled to others while they are stepped, and how strongly: ``{"head": ("start.head", mu)}``
            adds ``mu * (w - center)`` to the gradient of w, where there is such a centre.
        repeats: steps in a row on each batch; its loss is then that before the last of them.
        limit: how many batches of an epoch are used, given how many there are; may not fall when there are more.
        whole: an epoch is one step on all samples that its batches would have had.
        direction: ``(slope, values, size, lr) -> gradients`` by name, in the place of the gradients at the ``values``
            of what is trained: ``slope`` gives those at other values, on some of the ``size`` samples of the batch.
            Tensors may be those of a stack of clients: only arithmetic that goes element by element is allowed.
        adjust: ``(client, gradients) -> gradients`` by name, before a step.
        moves: ``(client, seed) -> flags`` by name of the parameter, whether a step may change it at all, its momentum
            and decay included; parameters that are not named always move.
        after_step: ``client -> values`` by name, to be written after each step.
        after_batch: ``(client, taken) -> values``, after the steps on a batch.
        after_epoch: the same, after each epoch.
        after: the same, after the phase.
    """

    train: tuple[str, ...]
    loss: Loss
    epochs: int
    once: Mapping[str, Once] = field(default_factory=dict)
    turns: tuple[tuple[str, ...], ...] = ()
    adam: Mapping[str, float] = field(default_factory=dict)
    sgd: Mapping[str, float] = field(default_factory=dict)
    pull: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    repeats: int = 1
    limit: Callable[[int], int] | None = None
    whole: bool = False
    direction: Callable[[Slope, Tensors, int, float], Tensors] | None = None
    adjust: Callable[[Tensors, Tensors], Tensors] | None = None
    moves: Callable[[Tensors, Tensor], Tensors] | None = None
    after_step: Callable[[Tensors], Tensors] | None = None
    after_batch: Callable[[Tensors, Taken], Tensors] | None = None
    after_epoch: Callable[[Tensors, Taken], Tensors] | None = None
    after: Callable[[Tensors, Taken], Tensors] | None = None
