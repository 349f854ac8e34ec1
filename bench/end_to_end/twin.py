"""The yardstick's twin of an experiment: the same clients, samples, initial values, learning rate and options."""

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

# What the yardstick takes of a method's options.
OPTIONS = {
    "fedavg": (),
    "fedper": (),
    "fedcp": ("lam",),
    "fedpick": ("tau", "lam_lce", "lam_ent", "lam_dis"),
    "fedafk": ("lam", "mu_init"),
    "fedios": ("alpha", "lam"),
}
# The yardstick's names of what the library calls otherwise.
NAMES = {
    "cpn.linear.0.": "cpn.0.",
    "cpn.norm.": "cpn.1.",
    "context.vector": "context",
    "selector.logits.": "selector.",
    "mixing.mu": "mu",
    "projector.generic": "generic",
    "projector.personal": "personal",
}


def twin(experiment: Experiment, train: Sequence[Iterable] | None = None) -> Server:
    """The yardstick for an experiment that has not run.

    Args:
        experiment: with the default options of its method, but for their numbers.
        train: for each client what gives its batches; None: loaders over its samples.
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
    """A client's samples, normalised, in torch's default memory format."""
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
    """Convolution, ReLU and pooling by torch's own operators."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(super().forward(x)), 2)


def in_plain_torch(extractor: nn.Module) -> nn.Module:
    """The same layers without the library's operators."""
    plain = deepcopy(extractor)
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, ConvReluPool):
            holder, _, last = name.rpartition(".")
            stage = Stage(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding)
            plain.get_submodule(holder).add_module(last, stage)
    return plain


def renamed(tensors: Tensors, wanted: Iterable[str]) -> Tensors:
    """The library's tensors by the yardstick's names, those that are ``wanted``."""
    found = {}
    for name, tensor in tensors.items():
        for theirs, ours in NAMES.items():
            if name.startswith(theirs):
                name = name.replace(theirs, ours, 1)
        found[name] = tensor
    return {name: found[name] for name in wanted}
