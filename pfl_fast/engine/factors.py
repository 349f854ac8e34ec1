"""Gradients of linear layers' weights as the factors they are products of.

A step takes W to ``W - lr (dL/dy)^T x`` in one pass over W. A gradient of W's size is made only where
something else is done with it, and then in memory that is kept: for layers of millions of weights fresh memory costs
more than the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.methods.base import Batch, Client, Loss, Tensors
from pfl_fast.nn import Linear, LinearCalls


@dataclass(frozen=True)
class Factors:
    """The gradient of one weight: the sum of ``dy^T x`` over the calls of its layer.

    Attributes:
        pairs: dy ``[b, n]`` and x ``[b, k]`` of each call, at least one.
    """

    pairs: list[tuple[Tensor, Tensor]]

    def descend_(self, weight: Tensor, start: Tensor, lr: float, weight_decay: float) -> None:
        """A step of SGD without momentum, from ``start``, which may be the weight itself."""
        for dy, x in self.pairs:
            ops.linear_step_(weight, dy, x, lr=lr, weight_decay=weight_decay, start=start)
            start, weight_decay = weight, 0.0

    def product_(self, out: Tensor) -> Tensor:
        """The gradient itself."""
        (dy, x), *others = self.pairs
        torch.mm(dy.t(), x, out=out)
        for dy, x in others:
            torch.addmm(out, dy.t(), x, out=out)
        return out


class LinearLayers:
    """The linear layers of a client's modules, whose calls it has noted."""

    def __init__(self, client: nn.Module) -> None:
        layers = {name: module for name, module in client.named_modules() if isinstance(module, Linear)}
        self.weights = {layer: f"{name}.weight" for name, layer in layers.items()}
        self.notes = LinearCalls()
        for layer in layers.values():
            layer.notes = self.notes
        self.memory: Tensors = {}

    def noted(self, loss: Loss, client: Client, batch: Batch) -> tuple[Tensor, Tensors]:
        """``loss(client, batch)``, in which the calls of layers are noted."""
        self.notes.calls, self.notes.open = [], True
        try:
            return loss(client, batch)
        finally:
            self.notes.open = False

    def gradients(self, loss: Tensor, parameters: Mapping[str, Tensor]) -> tuple[Tensors, dict[str, Factors]]:
        """Gradients of a noted loss by name of what it depends on: some as tensors, some as factors.

        A weight that is used otherwise as well has a tensor for all of it.
        """
        calls = [(name, c) for c in self.notes.calls if (name := self.weights[c.layer]) in parameters]
        self.notes.calls = []  # which hold on to the graph
        wanted: list[Any] = [*parameters.values(), *(call.y for _, call in calls)]
        found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
        dense = {name: gradient for name in parameters if (gradient := next(found)) is not None}
        factors: dict[str, Factors] = {}
        for name, call in calls:
            call.check()
            if (dy := next(found)) is not None:
                factors.setdefault(name, Factors([])).pairs.append((dy, call.x))
        for name in dense.keys() & factors.keys():
            dense[name] = dense[name] + self.product(name, factors.pop(name))
        return dense, factors

    def product(self, name: str, factors: Factors) -> Tensor:
        """A gradient as a tensor, in memory that the next one of this name takes over."""
        dy, x = factors.pairs[0]
        if name not in self.memory:
            self.memory[name] = x.new_empty(dy.shape[1], x.shape[1])
        return factors.product_(self.memory[name])
