"""Activations in place, which cost launches under ``torch.vmap``: there they write to a view of the stack's tensor."""

from __future__ import annotations

import torch
from torch import nn

from pfl_fast.data.federated import FederatedData
from pfl_fast.engine.state.part_table import PartTable
from pfl_fast.methods.base import Batch, Method

CPU = torch.device("cpu")
SAMPLES = 2


def activations_in_place(module: nn.Module) -> list[nn.Module]:
    """Returns the activations of torch that overwrite their input, such as ``nn.ReLU(inplace=True)``."""
    kind = nn.ReLU.__module__
    return [layer for layer in module.modules() if type(layer).__module__ == kind and getattr(layer, "inplace", False)]


def avoid_in_place(client: nn.Module, part_table: PartTable, method: Method, data: FederatedData) -> None:
    """Lets the activations of ``client`` return a new tensor, if that leaves predictions unchanged.

    It would change a model that reads the input of an activation again. So one prediction is made both ways.
    """
    layers = activations_in_place(client)
    if layers and _predictions_are_equal(part_table, method, data):
        for layer in layers:
            layer.inplace = False  # type: ignore[assignment]


def _predictions_are_equal(part_table: PartTable, method: Method, data: FederatedData) -> bool:
    client = part_table.bindable_client(CPU).eval()
    number = int(data.train_sizes.argmax())
    x, y = (t.cpu() for t in data.take(data.indices("train", number)[:SAMPLES]))
    predictions = []
    with torch.no_grad():
        for layers in ([], activations_in_place(client)):
            for layer in layers:
                layer.inplace = False  # type: ignore[assignment]
            try:
                predictions.append(method.predict(client, Batch(x.clone(), y, torch.tensor(0))))
            except Exception:  # models may do anything; training will raise it
                return False
    return torch.equal(*predictions)
