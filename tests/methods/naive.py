"""Naive FedAvg, Local and FedPer, written from the papers: a module per client, plain loops, eager losses.

The package provides only the order of batches, the sampled clients, the initial weights and the noise. The naive
versions of the other methods derive from this one.
"""

from copy import deepcopy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_fast.engine.sampling import sample
from pfl_fast.randomness import key

BANDWIDTHS = (10, 15, 20, 50)


@dataclass
class NaiveClient:
    """One client: modules by name, and further tensors by part and name."""

    number: int
    modules: dict
    state: dict = field(default_factory=dict)
    losses: list = field(default_factory=list)  # (number of samples, loss) of every step


def exchanged(module, policy):
    """Returns the tensors of a module that are exchanged under a BatchNorm policy, by name."""
    local = set()
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            dot = path + "." if path else ""
            if policy == "personal":
                local |= {dot + name for name in layer.state_dict()}
            elif policy == "params_shared_buffers_local":
                local |= {dot + "running_mean", dot + "running_var", dot + "num_batches_tracked"}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in local}


def copy_exchanged(source, target, policy):
    """Copies the exchanged tensors of ``source`` to ``target``."""
    for name, tensor in exchanged(target, policy).items():
        tensor.copy_(source.state_dict()[name])


def average(uploads, weights):
    """Returns the weighted sum of the uploads, by name; integer tensors are copied from the first upload."""
    result = {}
    for name, first in uploads[0].items():
        if first.is_floating_point():
            result[name] = sum(w * upload[name] for w, upload in zip(weights, uploads, strict=True))
        else:
            result[name] = first.clone()
    return result


class Federation:
    """Runs FedAvg on the data, the model and the settings of an experiment that has not run."""

    shared = ("extractor", "head")  # averaged modules
    to_all = True  # True if all clients receive the shared modules, False if only the sampled ones
    trained = ("extractor", "head")
    extra_modules = ()  # modules of a client in addition to extractor and head, with the package's initial values
    not_compared = ()  # prefixes of tensors that only the package has
    compares_losses = True  # True if the recorded losses are compared

    def __init__(self, method, experiment):
        self.method, self.data, self.settings = method, experiment.data, experiment.settings
        self.o = experiment.options
        self.policy = experiment.part_table.batch_norm
        initial = deepcopy(experiment.part_table.client)
        modules = {name: getattr(initial, name) for name in ("extractor", "head", *self.extra_modules)}
        self.clients = [NaiveClient(i, deepcopy(modules)) for i in range(self.data.clients)]
        self.server = {name: deepcopy(modules[name]) for name in self.shared}
        self.state = {}

    def rounds(self):
        for number in range(1, self.settings.rounds + 1):
            self.round(number)
        return self

    def round(self, number):
        cohort = sample(self.settings, len(self.clients), number)
        for i in cohort.training:
            self.receive(self.clients[i], at_start=True)
            self.train(self.clients[i], number)
        self.aggregate([self.clients[i] for i in cohort.uploading])
        for i in cohort.receiving:
            self.receive(self.clients[i])
        for client in self.clients:
            self.receive_broadcast(client)

    def aggregate(self, uploading):
        weights = self.weights(uploading)
        for name in self.shared:
            load(self.server[name], average([self.upload(client, name) for client in uploading], weights))

    def weights(self, uploading):
        sizes = [len(self.data.indices("train", c.number)) for c in uploading]
        return [size / sum(sizes) for size in sizes]

    def receive(self, client, at_start=False):
        for name in self.shared:
            copy_exchanged(self.server[name], client.modules[name], self.policy)

    def receive_broadcast(self, client):
        if self.to_all:
            Federation.receive(self, client)

    def upload(self, client, name):
        return {key_: tensor.clone() for key_, tensor in exchanged(client.modules[name], self.policy).items()}

    def lr(self, number):
        return self.settings.lr * self.settings.lr_decay ** (number - 1)

    def sgd(self, parameters, lr):
        return torch.optim.SGD(parameters, lr, self.settings.momentum, weight_decay=self.settings.weight_decay)

    def train(self, client, number):
        self.epochs(client, number, range(self.settings.local_epochs))

    def epochs(self, client, number, epochs, trained=None, loss=None, edit_gradients=None):
        """Trains modules by SGD; ``edit_gradients`` is called before each step. Returns the number of steps."""
        loss = loss or self.loss
        train_mode(client)
        parameters = [p for name in trained or self.trained for p in client.modules[name].parameters()]
        optimizer = self.sgd(parameters, self.lr(number))
        steps = 0
        for x, y, seed in self.batches(client, number, epochs):
            optimizer.zero_grad()
            value = loss(client, x, y, seed)
            value.backward()
            if edit_gradients:
                edit_gradients(client)
            optimizer.step()
            client.losses.append((len(y), value.item()))
            steps += 1
        return steps

    def batches(self, client, number, epochs, step=0):
        """Yields the batches of several epochs, each with the seed of its noise."""
        for epoch in epochs:
            for x, y, _ in self.data.batches(client.number, number, epoch):
                yield x, y, key(self.settings.seed, "noise", client.number, number, step)
                step += 1

    def loss(self, client, x, y, seed):
        return F.cross_entropy(client.modules["head"](client.modules["extractor"](x)), y)

    def exchanged_parameters(self, client, prefix=""):
        """Returns the exchanged parameters of the modules ``<prefix>extractor`` and ``<prefix>head``, by name."""
        return {
            f"{part}.{name}": parameter
            for part in ("extractor", "head")
            for name, parameter in client.modules[prefix + part].named_parameters()
            if name in exchanged(client.modules[prefix + part], self.policy)
        }

    def predict(self, number, x):
        """Returns the logits of a client's model in evaluation mode."""
        client = self.clients[number]
        for module in client.modules.values():
            module.eval()
        with torch.no_grad():
            return self.logits(client, x)

    def logits(self, client, x):
        return client.modules["head"](client.modules["extractor"](x))

    def tensors(self):
        """Returns all tensors by the names of the package."""
        found = {}
        owners = [("server", self.server, self.state)]
        owners += [(f"client {c.number}", c.modules, c.state) for c in self.clients]
        for owner, modules, state in owners:
            for name, module in modules.items():
                found.update({f"{owner} {name}.{n}": t for n, t in module.state_dict().items()})
            for name, tensors in state.items():
                found.update({f"{owner} {name}.{n}" if n else f"{owner} {name}": t for n, t in tensors.items()})
        return found


class Local(Federation):
    shared = ()


class FedPer(Federation):
    shared, to_all = ("extractor",), False


def train_mode(client):
    for module in client.modules.values():
        module.train()


def load(module, values):
    """Overwrites tensors of a module by name."""
    for name, value in values.items():
        module.state_dict()[name].copy_(value)


def copies(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def mmd(h, h0):
    """Returns the mean over pairs of ``k(h, h) + k(h0, h0) - 2 k(h, h0)``; k is a sum of Gaussians."""

    def k(a, b):
        distance = ((a[:, None] - b[None]) ** 2).sum(-1)
        return sum(torch.exp(-distance / (2 * width)) for width in BANDWIDTHS)

    return (k(h, h) + k(h0, h0) - 2 * k(h, h0)).mean()
