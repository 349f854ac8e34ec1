"""FedAvg, Local and FedPer once more, from the papers alone: a module per client, loops, eager losses.

Nothing of the library is used but the order of batches, who takes part, the initial weights and the noise. The naive
versions of other methods build on it.
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
    """A client: its modules by name, and tensors beside them, by part and name."""

    number: int
    modules: dict
    notes: dict = field(default_factory=dict)
    losses: list = field(default_factory=list)  # (samples, loss), of all rounds


def exchanged(module, policy):
    """The tensors of a module that leave a client, by name."""
    local = set()
    for path, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            dot = path + "." if path else ""
            if policy == "personal":
                local |= {dot + name for name in layer.state_dict()}
            elif policy == "params_shared_buffers_local":
                local |= {dot + "running_mean", dot + "running_var", dot + "num_batches_tracked"}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in local}


def give(source, target, policy):
    """Overwrites what is exchanged."""
    for name, tensor in exchanged(target, policy).items():
        tensor.copy_(source.state_dict()[name])


def average(uploads, weights):
    """Tensor by tensor, client by client; integers are the first one's."""
    result = {}
    for name, first in uploads[0].items():
        if first.is_floating_point():
            result[name] = sum(w * upload[name] for w, upload in zip(weights, uploads, strict=True))
        else:
            result[name] = first.clone()
    return result


class Federation:
    """Runs ``rounds`` on the data, the model and the settings of an experiment that has not run. As it is: FedAvg."""

    shared = ("extractor", "head")  # averaged
    to_all = True  # everybody receives what is shared, not only those who take part
    trained = ("extractor", "head")
    beside = ()  # a client's modules besides extractor and head, which start as the library's do
    hidden = ()  # what the library's client or server has for its own use: not compared
    records = True  # whether the losses are compared

    def __init__(self, method, experiment):
        self.method, self.data, self.settings = method, experiment.data, experiment.settings
        self.o = experiment.options
        self.policy = experiment.part_table.batch_norm
        initial = deepcopy(experiment.part_table.client)
        modules = {name: getattr(initial, name) for name in ("extractor", "head", *self.beside)}
        self.clients = [NaiveClient(i, deepcopy(modules)) for i in range(self.data.clients)]
        self.server = {name: deepcopy(modules[name]) for name in self.shared}
        self.notes = {}

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
            self.receive_what_all_receive(client)

    def aggregate(self, uploading):
        weights = self.weights(uploading)
        for name in self.shared:
            load(self.server[name], average([self.upload(client, name) for client in uploading], weights))

    def weights(self, uploading):
        sizes = [len(self.data.indices("train", c.number)) for c in uploading]
        return [size / sum(sizes) for size in sizes]

    def receive(self, client, at_start=False):
        for name in self.shared:
            give(self.server[name], client.modules[name], self.policy)

    def receive_what_all_receive(self, client):
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

    def epochs(self, client, number, epochs, trained=None, loss=None, correct=None):
        """Plain training of some modules; ``correct`` may change the gradients. Returns the number of steps."""
        loss = loss or self.loss
        train_mode(client)
        parameters = [p for name in trained or self.trained for p in client.modules[name].parameters()]
        optimizer = self.sgd(parameters, self.lr(number))
        steps = 0
        for x, y, seed in self.batches(client, number, epochs):
            optimizer.zero_grad()
            value = loss(client, x, y, seed)
            value.backward()
            if correct:
                correct(client)
            optimizer.step()
            client.losses.append((len(y), value.item()))
            steps += 1
        return steps

    def batches(self, client, number, epochs, step=0):
        """Of several epochs, each with the key of its noise."""
        for epoch in epochs:
            for x, y, _ in self.data.batches(client.number, number, epoch):
                yield x, y, key(self.settings.seed, "noise", client.number, number, step)
                step += 1

    def loss(self, client, x, y, seed):
        return F.cross_entropy(client.modules["head"](client.modules["extractor"](x)), y)

    def mirror(self, client, before=""):
        """Parameters of extractor and head that are exchanged, by name; ``before`` says of which extractor and head."""
        return {
            f"{part}.{name}": parameter
            for part in ("extractor", "head")
            for name, parameter in client.modules[before + part].named_parameters()
            if name in exchanged(client.modules[before + part], self.policy)
        }

    def predict(self, number, x):
        """Logits of a client's model, without noise."""
        client = self.clients[number]
        for module in client.modules.values():
            module.eval()
        with torch.no_grad():
            return self.logits(client, x)

    def logits(self, client, x):
        return client.modules["head"](client.modules["extractor"](x))

    def tensors(self):
        """Everything by the names the engine has for it."""
        found = {}
        owners = [("server", self.server, self.notes)]
        owners += [(f"client {c.number}", c.modules, c.notes) for c in self.clients]
        for owner, modules, notes in owners:
            for name, module in modules.items():
                found.update({f"{owner} {name}.{n}": t for n, t in module.state_dict().items()})
            for name, tensors in notes.items():
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
    """Overwrites tensors by name."""
    for name, value in values.items():
        module.state_dict()[name].copy_(value)


def copies(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def mmd(h, h0):
    """Mean over pairs of ``k(h, h) + k(h0, h0) - 2 k(h, h0)``, k a sum of Gaussians of squared distances."""

    def k(a, b):
        distance = ((a[:, None] - b[None]) ** 2).sum(-1)
        return sum(torch.exp(-distance / (2 * width)) for width in BANDWIDTHS)

    return (k(h, h) + k(h0, h0) - 2 * k(h, h0)).mean()
