"""Gradients of linear layers' weights, as the factors of a product.

An SGD step is ``W - lr (dL/dy)^T x``, one pass over W. The gradient is materialised only if it is used otherwise, in
memory that is reused: for layers of millions of weights, allocating it costs more than the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pfl_fast.methods.base import Batch, Client, Loss, Tensors
from pfl_fast.nn import Linear, LinearRecorder


@dataclass(frozen=True)
class GradientFactors:
    """The gradient of one weight: the sum of ``dy^T x`` over the calls of its layer.

    Attributes:
        pairs: dy ``[b, n]`` and x ``[b, k]`` of each call, at least one.
    """

    pairs: list[tuple[Tensor, Tensor]]

    def sgd_step_(self, weight: Tensor, start: Tensor, lr: float, weight_decay: float) -> None:
        """Writes the result of an SGD step without momentum from ``start`` to ``weight``; they may be the same."""
        for dy, x in self.pairs:
            torch.addmm(start, dy.t(), x, beta=1 - lr * weight_decay, alpha=-lr, out=weight)
            start, weight_decay = weight, 0.0


class LinearGradients:
    """Computes gradients of losses in which calls of linear layers are recorded.

    Attributes:
        weights: name of each layer's weight.
    """

    def __init__(self, client: nn.Module) -> None:
        layers = {name: module for name, module in client.named_modules() if isinstance(module, Linear)}
        self.weights = {layer: f"{name}.weight" for name, layer in layers.items()}
        self.recorder = LinearRecorder()
        for layer in layers.values():
            layer.recorder = self.recorder
        self._buffers: Tensors = {}

    def record(self, loss: Loss, client: Client, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``loss(client, batch)`` and records the calls of linear layers."""
        self.recorder.calls, self.recorder.enabled = [], True
        try:
            return loss(client, batch)
        finally:
            self.recorder.enabled = False

    def gradients(self, loss: Tensor, parameters: Mapping[str, Tensor]) -> tuple[Tensors, dict[str, GradientFactors]]:
        """Returns gradients of a recorded loss by parameter name, some as tensors and some as factors.

        A weight that the loss also uses outside its layer gets a single tensor.
        """
        calls = [(name, c) for c in self.recorder.calls if (name := self.weights[c.layer]) in parameters]
        self.recorder.calls = []  # they reference the graph
        wanted: list[Any] = [*parameters.values(), *(call.y for _, call in calls)]
        found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
        dense = {name: gradient for name in parameters if (gradient := next(found)) is not None}
        factors: dict[str, GradientFactors] = {}
        for name, call in calls:
            call.check()
            if (dy := next(found)) is not None:
                factors.setdefault(name, GradientFactors([])).pairs.append((dy, call.x))
        for name in dense.keys() & factors.keys():
            dense[name] = dense[name] + self.product(name, factors.pop(name))
        return dense, factors

    def product(self, name: str, factors: GradientFactors) -> Tensor:
        """Returns a gradient as a tensor, in a buffer that the next gradient of this name overwrites."""
        (dy, x), *others = factors.pairs
        if name not in self._buffers:
            self._buffers[name] = x.new_empty(dy.shape[1], x.shape[1])
        out = self._buffers[name]
        torch.mm(dy.t(), x, out=out)
        for dy, x in others:
            torch.addmm(out, dy.t(), x, out=out)
        return out
