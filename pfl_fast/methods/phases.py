"""Phases of local training: parts to train, loss, number of epochs, and deviations from plain SGD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from pfl_fast.methods.parts import Client, Tensors, apply


@dataclass
class Batch:
    """Input of a loss or a prediction.

    Attributes:
        x: ``[b, ...]`` samples.
        y: ``[b]`` int64 labels.
        seed: int64 scalar, seed of the noise of this client and step.
        cached: values of the phase's ``cached`` for these samples, by name.
    """

    x: Tensor
    y: Tensor
    seed: Tensor
    cached: Tensors = field(default_factory=dict)


Loss = Callable[[Client, Batch], tuple[Tensor, Tensors]]


@dataclass(frozen=True)
class PerSampleCache:
    """A value per sample that local training does not change, such as the features of a frozen extractor.

    The engine computes it once per round, in large batches. It recomputes the value in every step if the value depends
    on the batch (BatchNorm in training mode), on augmentation or on dropout; ``repeats`` and ``custom_gradient`` then
    compute it again for each of their losses.

    Attributes:
        part: the part whose output is cached; the phase must not train it.
        function: ``(client, x) -> [b, ...]``, computed instead of the part's output; uses only this part.
    """

    part: str
    function: Callable[[Client, Tensor], Tensor] | None = None

    def compute(self, client: Client, x: Tensor) -> Tensor:
        """Returns the values ``[b, ...]`` of samples ``x``."""
        return self.function(client, x) if self.function else apply(client, (self.part,), x)


@dataclass(frozen=True)
class PhaseProgress:
    """Progress of one client in a phase.

    Attributes:
        steps: integer scalar, number of batches the client has stepped on.
        lr: learning rate of the round.
        loss: scalar, loss of the last step.
    """

    steps: Tensor
    lr: float
    loss: Tensor


class GradientAt(Protocol):
    """Computes gradients of the phase's loss, by parameter name, at any values of the trained parameters."""

    def __call__(self, values: Tensors, samples: slice = ..., reported: bool = True) -> Tensors:
        """Returns the gradients at ``values`` on ``samples`` of the batch.

        The step reports the loss of the last call with ``reported=True``.
        """


@dataclass(frozen=True)
class Phase:
    """A stretch of local training.

    Attributes:
        train: names of the parts to train.
        loss: ``(client, batch) -> (loss, recorded)``. Recorded scalars are averaged over the client's samples of the
            round and written to the results.
        epochs: number of passes over the client's training samples.
        first_epoch: number of the first of these epochs in the round; it determines their batches and noise. None: the
            epochs of all phases are numbered one after the other.
        cached: values per sample to pass as ``batch.cached``, by name.
        rotation: parts to train in the first batch of an epoch, in the second and so on, cyclically; empty: all of
            ``train`` in every batch.
        adam: learning rates of the parts that Adam trains instead of SGD; its moments start from zero in every round.
        plain_sgd: learning rates of the parts that SGD trains without momentum and weight decay, such as mixing
            weights; None: that of the round.
        sgd: ``lr``, ``momentum`` or ``weight_decay`` of this phase, overriding the run's.
        proximal: proximal terms: ``{"head": ("start.head", mu)}`` adds ``mu * (w - center)`` to the gradient of each
            parameter w of the head that has a center of the same name in ``start.head``.
        repeats: number of consecutive steps on each batch; the reported loss is that of the last one.
        limit: ``number of batches of an epoch -> number of batches to use``; must not decrease.
        whole: an epoch is a single step on the samples of all its batches.
        pooled: an epoch visits the training samples of all clients. One client trains for all in such a round.
        custom_gradient: ``(gradient_at, values, size, lr) -> gradients`` by name, computed instead of the gradients at
            the current ``values``; ``size`` is the number of samples of the batch. The tensors may be stacked over
            clients, so only elementwise arithmetic is allowed.
        edit_gradients: ``(client, gradients) -> gradients`` by name, before a step.
        update_mask: ``(client, seed) -> flags`` by parameter name: False freezes the parameter and its momentum in
            this step. Parameters without a flag are updated.
        after_step: ``client -> values`` by name, written after every step.
        after_batch: ``(client, progress) -> values`` by name, written after the steps on a batch.
        after_epoch: as ``after_batch``, after every epoch.
        after: as ``after_batch``, after the phase.
    """

    train: tuple[str, ...]
    loss: Loss
    epochs: int
    first_epoch: int | None = field(default=None, compare=False, kw_only=True)
    cached: Mapping[str, PerSampleCache] = field(default_factory=dict)
    rotation: tuple[tuple[str, ...], ...] = ()
    adam: Mapping[str, float] = field(default_factory=dict)
    plain_sgd: Mapping[str, float | None] = field(default_factory=dict)
    sgd: Mapping[str, float] = field(default_factory=dict)
    proximal: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    repeats: int = 1
    limit: Callable[[int], int] | None = None
    whole: bool = False
    pooled: bool = False
    custom_gradient: Callable[[GradientAt, Tensors, int, float], Tensors] | None = None
    edit_gradients: Callable[[Tensors, Tensors], Tensors] | None = None
    update_mask: Callable[[Tensors, Tensor], Tensors] | None = None
    after_step: Callable[[Tensors], Tensors] | None = None
    after_batch: Callable[[Tensors, PhaseProgress], Tensors] | None = None
    after_epoch: Callable[[Tensors, PhaseProgress], Tensors] | None = None
    after: Callable[[Tensors, PhaseProgress], Tensors] | None = None
