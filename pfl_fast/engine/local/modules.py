"""Runs a method's code on given tensors: bound to modules for one client, under ``torch.vmap`` for a stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_fast.methods.base import Batch, Client, Part, Tensors


def bind(module: nn.Module, tensors: Tensors, trained: set[str]) -> None:
    """Binds ``tensors`` as parameters and buffers of ``module``, uncopied; ``trained`` ones require gradients."""
    for prefix, child in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for name in child._parameters:
            value = tensors.get(dot + name)
            if value is not None:
                child._parameters[name] = nn.Parameter(value, requires_grad=dot + name in trained)
        for name in child._buffers:
            value = tensors.get(dot + name)
            if value is not None:
                child._buffers[name] = value


def set_mode(client: Client, parts: dict[str, Part], training: bool) -> None:
    """Sets training mode, except for the parts with ``eval_mode``."""
    client.train(training)
    for name, part in parts.items():
        if part.eval_mode:
            client.get_submodule(name).eval()


class Call(nn.Module):
    """Calls ``function(client, batch)`` as a module's forward, so that ``functional_call`` can replace tensors."""

    def __init__(self, client: Client, function: Callable[[Client, Batch], Any]) -> None:
        super().__init__()
        self.client = client
        self.function = function

    def forward(self, batch: Batch) -> Any:
        """Returns ``function(client, batch)``."""
        return self.function(self.client, batch)


def evaluate_at(client: Client, function: Callable[[Client, Batch], Any], values: Tensors, batch: Batch) -> Any:
    """Returns ``function(client, batch)`` with some of the client's tensors replaced by ``values``."""
    replaced = {f"client.{name}": value for name, value in values.items()}
    return functional_call(Call(client, function), replaced, (batch,))


def stacked(client: Client, function: Callable[[Client, Batch], Any], seeds: list[str]) -> Callable[..., Any]:
    """Returns ``function`` of a stack: ``(tensors [C, ...], x [C, b, ...], y [C, b], seed [C], cached)``."""

    def one(tensors: Tensors, x: Tensor, y: Tensor, seed: Tensor, cached: Tensors) -> Any:
        return evaluate_at(client, function, {**tensors, **dict.fromkeys(seeds, seed)}, Batch(x, y, seed, cached))

    return torch.vmap(one)
