"""FedAvg, Local, FedPer and FedCP once more, from the papers alone: a module per client, loops, eager losses.

Nothing of the library is used but the order of batches, who takes part, the initial weights and the noise.
"""

from copy import deepcopy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_fast.engine.sampling import sample
from pfl_fast.ops import reference
from pfl_fast.randomness import key

SHARED = {"fedavg": ["extractor", "head"], "local": [], "fedper": ["extractor"]}
BANDWIDTHS = (10, 15, 20, 50)


@dataclass
class Person:
    """A client: its modules by name, and for FedCP the context u."""

    number: int
    modules: dict
    u: torch.Tensor | None = None
    losses: list = field(default_factory=list)  # (samples, loss), of all rounds
    shares: list = field(default_factory=list)  # (samples, mean of s), likewise


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
    """Runs ``rounds`` on the data, the model and the settings of an experiment that has not run."""

    def __init__(self, method, experiment):
        self.method, self.data, self.settings = method, experiment.data, experiment.settings
        self.o = experiment.options
        self.policy = experiment.layout.batch_norm
        initial = deepcopy(experiment.layout.client)
        modules = {"extractor": initial.extractor, "head": initial.head}
        if method == "fedcp":
            modules["global_extractor"] = deepcopy(initial.extractor)
            modules["global_head"] = deepcopy(initial.head)
            if self.o.cpn:
                modules["cpn"] = Policy(initial.cpn, self.o)
        self.clients = [Person(i, deepcopy(modules)) for i in range(self.data.clients)]
        self.server = {name: deepcopy(modules[name]) for name in ("extractor", "head", "cpn") if name in modules}
        if method == "fedcp":
            for client in self.clients:
                self.first_context(client)

    def rounds(self):
        for number in range(1, self.settings.rounds + 1):
            self.round(number)
        return self

    def round(self, number):
        cohort = sample(self.settings, len(self.clients), number)
        selected = [self.clients[i] for i in cohort.trains]
        for client in selected:
            self.receive(client, at_start=True)
            self.train(client, number)
        if self.shared:
            uploading = [self.clients[i] for i in cohort.uploads]
            sizes = [len(self.data.indices("train", c.number)) for c in uploading]
            weights = [size / sum(sizes) for size in sizes]
            for name in self.shared:
                uploads = [self.upload(client, name) for client in uploading]
                for key_, value in average(uploads, weights).items():
                    self.server[name].state_dict()[key_].copy_(value)
        for client in selected:
            self.receive(client)
        for client in self.clients:
            self.receive_what_all_receive(client)

    @property
    def shared(self):
        if self.method != "fedcp":
            return SHARED[self.method]
        return ["extractor"] + ["head"] * self.o.gh + ["cpn"] * self.o.cpn

    def receive(self, client, at_start=False):
        for name in self.shared:
            if self.method == "fedcp" and name == "head":
                give(self.server["head"], client.modules["global_head"], self.policy)
                continue
            give(self.server[name], client.modules[name], self.policy)
            if self.method == "fedcp" and name == "extractor":
                give(self.server[name], client.modules["global_extractor"], self.policy)
        if self.method == "fedcp" and self.o.cpn_input != "random" and not (self.o.random_first and at_start):
            client.u = context(client.modules["head"])

    def receive_what_all_receive(self, client):
        if self.method == "fedavg":
            self.receive(client)
        if self.method == "fedcp" and self.o.extractor_to_all:
            for name in ("extractor", "global_extractor"):
                give(self.server["extractor"], client.modules[name], self.policy)

    def upload(self, client, name):
        if self.method == "fedcp" and name == "head":
            mine, everyones = (exchanged(client.modules[n], self.policy) for n in ("head", "global_head"))
            return {key_: (mine[key_] + everyones[key_]) / 2 for key_ in mine}
        return {key_: tensor.clone() for key_, tensor in exchanged(client.modules[name], self.policy).items()}

    def train(self, client, number):
        s = self.settings
        trained = [client.modules[name] for name in ("extractor", "head", "cpn") if name in client.modules]
        for module in client.modules.values():
            module.train()
        if self.method == "fedcp" and self.o.frozen_eval:
            client.modules["global_extractor"].eval()
        lr = s.lr * s.lr_decay ** (number - 1)
        optimizer = torch.optim.SGD(
            [p for module in trained for p in module.parameters()], lr, s.momentum, weight_decay=s.weight_decay
        )
        step = 0
        for epoch in range(s.local_epochs):
            for x, y, _ in self.data.batches(client.number, number, epoch):
                seed = key(s.seed, "noise", client.number, number, step)
                optimizer.zero_grad()
                loss = self.loss(client, x, y, seed)
                loss.backward()
                optimizer.step()
                client.losses.append((len(y), loss.item()))
                step += 1

    def loss(self, client, x, y, seed):
        if self.method != "fedcp":
            return F.cross_entropy(client.modules["head"](client.modules["extractor"](x)), y)
        h = client.modules["extractor"](x)
        loss = F.cross_entropy(self.out(client, h, seed), y)
        if self.o.gfm and self.o.lam > 0:
            with torch.no_grad():
                h0 = client.modules["global_extractor"](x)
            loss = loss + self.o.lam * mmd(h, h0)
        return loss

    def out(self, client, h, seed=None):
        """``W_hd(r * h) + W_i_hd(s * h)``."""
        m = client.modules
        if not self.o.cpn:
            if not self.o.gh:
                return m["head"](h)
            part = h if self.o.without_cpn == "full" else 0.5 * h
            return m["global_head"](part) + m["head"](part)
        c = {"hv": client.u * h, "h": h}.get(self.o.cpn_input, client.u.expand_as(h))
        a = m["cpn"](c)
        if self.o.policy == "gumbel" and seed is not None:
            u = reference.philox_uniform(torch.tensor(seed), h.shape).to(h.dtype)
            a = torch.stack([a[:, 0] + torch.log(u) - torch.log1p(-u), a[:, 1]], dim=1)
        share = torch.softmax(a, dim=1)
        r, s = share[:, 0], share[:, 1]
        if m["cpn"].training:
            client.shares.append((len(h), s.mean().item()))
        return m["global_head"](r * h) + m["head"](s * h)

    def predict(self, number, x):
        """Logits of a client's model, without noise."""
        client = self.clients[number]
        for module in client.modules.values():
            module.eval()
        with torch.no_grad():
            h = client.modules["extractor"](x)
            return self.out(client, h) if self.method == "fedcp" else client.modules["head"](h)

    def first_context(self, client):
        client.u = context(client.modules["head"])
        if self.o.cpn_input == "random" or self.o.random_first:
            seed = torch.tensor(key(self.settings.seed, "initial", client.number))
            vector = reference.philox_uniform(seed, client.u.shape).to(client.u.dtype)
            client.u = vector if self.o.cpn_input == "random" else vector / vector.norm()

    def tensors(self):
        """Everything by the names the engine has for it."""
        found = {}
        for name in self.shared:
            found.update({f"server {name}.{n}": t for n, t in self.server[name].state_dict().items()})
        for client in self.clients:
            for name, module in client.modules.items():
                found.update({f"client {client.number} {name}.{n}": t for n, t in module.state_dict().items()})
            if client.u is not None:
                found[f"client {client.number} context.vector"] = client.u
        return found


class Policy(nn.Module):
    """The conditional policy network with the weights of ``initial``; its names are the same."""

    def __init__(self, initial, options):
        super().__init__()
        width = initial.linear[-1].in_features
        layers = []
        for _ in range(options.cpn_depth - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.linear = nn.Sequential(*layers, nn.Linear(width, 2 * width))
        norms = {"ln": nn.LayerNorm(2 * width), "bn": nn.BatchNorm1d(2 * width), "gn": nn.GroupNorm(2, 2 * width)}
        self.norm = norms[options.cpn_norm]
        self.act = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid()}[options.cpn_act]
        self.to(initial.linear[-1].weight.dtype)
        self.load_state_dict(initial.state_dict())

    def forward(self, c):
        return self.act(self.norm(self.linear(c))).reshape(len(c), 2, -1)


def context(head):
    """``v / |v|``, v the sum over classes of the rows of the head's weights, multiplied out first."""
    product = None
    for layer in [head] if isinstance(head, nn.Linear) else head:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach()
            product = weight if product is None else weight @ product
    v = product.sum(0)
    return v / v.norm()


def mmd(h, h0):
    """Mean over pairs of ``k(h, h) + k(h0, h0) - 2 k(h, h0)``, k a sum of Gaussians of squared distances."""

    def k(a, b):
        distance = ((a[:, None] - b[None]) ** 2).sum(-1)
        return sum(torch.exp(-distance / (2 * width)) for width in BANDWIDTHS)

    return (k(h, h) + k(h0, h0) - 2 * k(h, h0)).mean()
