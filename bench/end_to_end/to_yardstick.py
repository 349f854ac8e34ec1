"""Conversion of an experiment to the yardstick, with the same clients, samples, initial values and options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from bench.yardstick import CLIENTS, Server, loaders
from pfl_fast import Experiment
from pfl_fast.data.federated import FederatedData
from pfl_fast.methods.base import Tensors
from pfl_fast.nn import ConvReluPool

# Options of a method that the yardstick uses.
OPTIONS = {
    "fedavg": (),
    "fedper": (),
    "fedcp": ("lam",),
    "fedpick": ("tau", "lam_lce", "lam_ent", "lam_dis"),
    "fedafk": ("lam", "mu_init"),
    "fedios": ("alpha", "lam"),
}
# Tensor names of the library -> names of the yardstick.
NAMES = {
    "cpn.linear.0.": "cpn.0.",
    "cpn.norm.": "cpn.1.",
    "context.vector": "context",
    "selector.logits.": "selector.",
    "mixing.mu": "mu",
    "projector.generic": "generic",
    "projector.personal": "personal",
}


def to_yardstick(experiment: Experiment, train: Sequence[Iterable] | None = None) -> Server:
    """Returns the yardstick's server for an experiment that has not run.

    Args:
        experiment: experiment with the default options of its method, except for numbers.
        train: training batches of each client; by default loaders over its samples.
    """
    data, settings = experiment.data, experiment.settings
    numbers = range(data.clients)
    pairs = [loaders(*(samples(data, split, i) for split in ("train", "test")), data.batch_size) for i in numbers]
    return Server(
        [client_of(experiment, i) for i in numbers],
        train or [first for first, _ in pairs],
        [second for _, second in pairs],
        [int(size) for size in data.train_sizes],
        data.num_classes,
        settings.lr,
        settings.momentum,
    )


def samples(data: FederatedData, split: str, client: int) -> tuple[Tensor, Tensor]:
    """Returns a client's normalised samples in torch's default memory format."""
    x, y = data.take(data.indices(split, client))
    return x.contiguous(), y


def client_of(experiment: Experiment, number: int) -> nn.Module:
    """One client of the yardstick with the library's initial values."""
    initial, options = experiment.part_table.client, experiment.options
    tensors = experiment.round.client_tensors(number)
    values = [getattr(options, name) for name in OPTIONS[experiment.method_name]]
    if "projector.personal" in tensors:
        values.insert(0, tensors["projector.personal"].shape[1])
    width = initial.head.in_features
    client = CLIENTS[experiment.method_name](in_plain_torch(initial.extractor), initial.head, width, *values)
    client.to(initial.head.weight.dtype).load_state_dict(renamed(tensors, client.state_dict()))
    return client


class Stage(nn.Conv2d):
    """Convolution, ReLU and max-pooling with torch operators."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(super().forward(x)), 2)


def in_plain_torch(extractor: nn.Module) -> nn.Module:
    """Returns a copy of the extractor without the library's operators."""
    plain = deepcopy(extractor)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, ConvReluPool):
            holder, _, last = name.rpartition(".")
            stage = Stage(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding)
            plain.get_submodule(holder).add_module(last, stage)
    return plain


def renamed(tensors: Tensors, wanted: Iterable[str]) -> Tensors:
    """Returns the ``wanted`` tensors of the library under the yardstick's names."""
    found = {}
    for name, tensor in tensors.items():
        for library_name, yardstick_name in NAMES.items():
            if name.startswith(library_name):
                name = name.replace(library_name, yardstick_name, 1)
        found[name] = tensor
    return {name: found[name] for name in wanted}
