"""Running a method's code on given tensors: bound to modules for one client, under vmap for a stack of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_fast.methods.base import Batch, Client, Part, Tensors


def bind(module: nn.Module, tensors: Tensors, trained: set[str]) -> None:
    """Makes ``tensors`` the parameters and buffers of ``module``, without copying; gradients for ``trained`` keys."""
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
    """Training mode for all parts but those that always evaluate."""
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
        """What the function returns."""
        return self.function(self.client, batch)


def evaluate_at(client: Client, function: Callable[[Client, Batch], Any], values: Tensors, batch: Batch) -> Any:
    """``function(client, batch)`` with some of the client's tensors replaced."""
    replaced = {f"client.{name}": value for name, value in values.items()}
    return functional_call(Call(client, function), replaced, (batch,))


def stacked(client: Client, function: Callable[[Client, Batch], Any], seeds: list[str]) -> Callable[..., Any]:
    """``function`` for a stack: ``(tensors [C, ...], x [C, b, ...], y [C, b], seed [C], once) -> [C, ...]``."""
    call = Call(client, function)

    def one(tensors: Tensors, x: Tensor, y: Tensor, seed: Tensor, once: Tensors) -> Any:
        values = {f"client.{name}": value for name, value in tensors.items()}
        values.update({f"client.{name}": seed for name in seeds})
        return functional_call(call, values, (Batch(x, y, seed, once),))

    return torch.vmap(one)
