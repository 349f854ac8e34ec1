"""Naive FedCP, written from the paper."""

from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from pfl_fast.ops import reference
from pfl_fast.randomness import key
from tests.methods.naive import Federation, copy_exchanged, exchanged, mmd


class CPFederation(Federation):
    """FedCP; clients have a context u and a list of the means of s."""

    to_all = False

    def __init__(self, method, experiment):
        self.shared = ("extractor", "head") if experiment.options.gh else ("extractor",)
        super().__init__(method, experiment)
        for client in self.clients:
            m = client.modules
            m |= {"global_extractor": deepcopy(m["extractor"]), "global_head": deepcopy(m["head"])}
            if self.o.cpn:
                m["cpn"] = Policy(experiment.part_table.client.cpn, self.o)
            client.state["context"] = {"vector": self.first_context(client)}
            client.shares = []  # (number of samples, mean of s) of every step
        if self.o.cpn:
            self.shared, self.trained = (*self.shared, "cpn"), (*self.trained, "cpn")
            self.server["cpn"] = deepcopy(self.clients[0].modules["cpn"])

    def first_context(self, client):
        u = context(client.modules["head"])
        if self.o.cpn_input == "random" or self.o.random_first:
            seed = torch.tensor(key(self.settings.seed, "initial", client.number))
            vector = reference.philox_uniform(seed, u.shape).to(u.dtype)
            u = vector if self.o.cpn_input == "random" else vector / vector.norm()
        return u

    def receive(self, client, at_start=False):
        for name in self.shared:
            if name != "head":
                copy_exchanged(self.server[name], client.modules[name], self.policy)
            if name != "cpn":
                copy_exchanged(self.server[name], client.modules[f"global_{name}"], self.policy)
        if self.o.cpn_input != "random" and not (self.o.random_first and at_start):
            client.state["context"] = {"vector": context(client.modules["head"])}

    def receive_broadcast(self, client):
        if self.o.extractor_to_all:
            for name in ("extractor", "global_extractor"):
                copy_exchanged(self.server["extractor"], client.modules[name], self.policy)

    def upload(self, client, name):
        if name != "head":
            return super().upload(client, name)
        personal, global_ = (exchanged(client.modules[n], self.policy) for n in ("head", "global_head"))
        return {key_: (personal[key_] + global_[key_]) / 2 for key_ in personal}

    def loss(self, client, x, y, seed):
        frozen = client.modules["global_extractor"]
        frozen.train(not self.o.frozen_eval)
        h = client.modules["extractor"](x)
        loss = F.cross_entropy(self.out(client, h, seed), y)
        if self.o.gfm and self.o.lam > 0:
            with torch.no_grad():
                h0 = frozen(x)
            loss = loss + self.o.lam * mmd(h, h0)
        return loss

    def out(self, client, h, seed=None):
        """``W_hd(r * h) + W_i_hd(s * h)``."""
        m, u = client.modules, client.state["context"]["vector"]
        if not self.o.cpn:
            if not self.o.gh:
                return m["head"](h)
            part = h if self.o.without_cpn == "full" else 0.5 * h
            return m["global_head"](part) + m["head"](part)
        c = {"hv": u * h, "h": h}.get(self.o.cpn_input, u.expand_as(h))
        a = m["cpn"](c)
        if self.o.policy == "gumbel" and seed is not None:
            u = reference.philox_uniform(torch.tensor(seed), h.shape).to(h.dtype)
            a = torch.stack([a[:, 0] + torch.log(u) - torch.log1p(-u), a[:, 1]], dim=1)
        share = torch.softmax(a, dim=1)
        r, s = share[:, 0], share[:, 1]
        if m["cpn"].training:
            client.shares.append((len(h), s.mean().item()))
        return m["global_head"](r * h) + m["head"](s * h)

    def logits(self, client, x):
        return self.out(client, client.modules["extractor"](x))


class Policy(nn.Module):
    """The conditional policy network, with names and weights of ``initial``."""

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
    """Returns ``v / |v|``; v is the sum over classes of the rows of the product of the head's weights."""
    product = None
    for layer in [head] if isinstance(head, nn.Linear) else head:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach()
            product = weight if product is None else weight @ product
    v = product.sum(0)
    return v / v.norm()
