"""Naive methods with a second model or a personal part per client, written from the papers."""

import math
from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812
from torch.func import functional_call

from tests.methods.naive import Federation, copies, exchanged, load, train_mode


class LGFedAvg(Federation):
    """The server's extractor does not change after the warm-up."""

    to_all = False

    def round(self, number):
        self.shared = ("extractor", "head") if number <= self.o.warmup else ("head",)
        super().round(number)


class FedRep(Federation):
    shared, to_all = ("extractor",), False

    def train(self, client, number):
        first, both = self.o.personal_epochs, self.o.personal_epochs + self.settings.local_epochs
        self.epochs(client, number, range(first), ["head"])
        self.epochs(client, number, range(first, both), ["extractor"])


class FedRoD(Federation):
    extra_modules = ("personal_head",)
    trained = ("extractor", "head", "personal_head")

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        classes, dtype = len(experiment.dataset.classes), self.clients[0].modules["head"].weight.dtype
        for client in self.clients:
            _, y = self.data.take(self.data.indices("train", client.number))
            client.state["counts"] = {"values": torch.tensor([(y == c).sum() for c in range(classes)], dtype=dtype)}

    def loss(self, client, x, y, seed):
        m, counts = client.modules, client.state["counts"]["values"]
        z = m["extractor"](x)
        generic = m["head"](z)
        balanced = F.cross_entropy(generic + torch.log(counts), y)
        return balanced + F.cross_entropy(generic.detach() + m["personal_head"](z.detach()), y)

    def logits(self, client, x):
        z = client.modules["extractor"](x)
        return client.modules["head"](z) + client.modules["personal_head"](z)


class TwoModels(Federation):
    """A shared model w and a personal model v, which predicts."""

    extra_modules = ("personal_extractor", "personal_head")

    def logits(self, client, x):
        return client.modules["personal_head"](client.modules["personal_extractor"](x))

    def personal_loss(self, client, x, y, seed):
        return F.cross_entropy(self.logits(client, x), y)

    def parameter_pairs(self, client):
        """Yields pairs of parameters (v, w)."""
        for part in ("extractor", "head"):
            v, w = client.modules[f"personal_{part}"], client.modules[part]
            yield from zip(v.parameters(), w.parameters(), strict=True)


class Ditto(TwoModels):
    def train(self, client, number):
        first, both = self.o.personal_epochs, self.o.personal_epochs + self.settings.local_epochs

        def add_proximal_term(client):
            for v, w in self.parameter_pairs(client):
                v.grad += self.o.lam * (v.detach() - w.detach())

        self.epochs(client, number, range(first), self.extra_modules, self.personal_loss, add_proximal_term)
        self.epochs(client, number, range(first, both))


class PFedMe(TwoModels):
    def train(self, client, number):
        m = client.modules
        for part in ("extractor", "head"):
            load(m[f"personal_{part}"], m[part].state_dict())
        train_mode(client)
        optimizer = self.sgd([v for v, _ in self.parameter_pairs(client)], self.o.personal_lr)
        for x, y, seed in self.batches(client, number, range(self.settings.local_epochs)):
            for _ in range(self.o.k):
                loss = self.personal_step(client, optimizer, x, y, seed)
            client.losses.append((len(y), loss.item()))
            for v, w in self.parameter_pairs(client):
                w.data -= self.lr(number) * self.o.lam * (w.data - v.data)
            for part in ("extractor", "head"):
                load(m[part], dict(m[f"personal_{part}"].named_buffers()))

    def personal_step(self, client, optimizer, x, y, seed):
        optimizer.zero_grad()
        loss = self.personal_loss(client, x, y, seed)
        loss.backward()
        for v, w in self.parameter_pairs(client):
            v.grad += self.o.lam * (v.detach() - w.detach())
            if self.o.compat == "pfllib":
                v.grad += 0.001 * v.detach()
        optimizer.step()
        return loss

    def aggregate(self, uploading):
        before = {name: copies(module.state_dict()) for name, module in self.server.items()}
        super().aggregate(uploading)
        for name, module in self.server.items():
            for key, w in exchanged(module, self.policy).items():
                if w.is_floating_point():
                    w.copy_(before[name][key] + self.o.server_step * (w - before[name][key]))


class APFL(TwoModels):
    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        for client in self.clients:
            dtype = client.modules["head"].weight.dtype
            client.alpha = torch.tensor(self.o.alpha, dtype=dtype, requires_grad=True)
            client.state["mixing"] = {"alpha": client.alpha.data}

    def train(self, client, number):
        train_mode(client)
        pairs, alpha = list(self.parameter_pairs(client)), client.alpha
        optimizer = self.sgd([*(v for v, _ in pairs), *(w for _, w in pairs)], self.lr(number))
        optimizer.add_param_group({"params": [alpha], "momentum": 0.0, "weight_decay": 0.0})
        for epoch in range(self.settings.local_epochs):
            for x, y, seed in self.batches(client, number, [epoch]):
                optimizer.zero_grad()
                loss = self.loss(client, x, y, seed)
                loss.backward()
                client.losses.append((len(y), loss.item() + self.personal_gradients(client, x, y)))
                optimizer.step()
                alpha.data.clamp_(0, 1)
            if self.o.compat == "pfllib":
                for v, w in pairs:
                    v.data.copy_(alpha.data * v.data + (1 - alpha.data) * w.data)

    def personal_gradients(self, client, x, y):
        """Sets the gradients of v and alpha; returns the loss."""
        alpha = client.alpha.detach()
        model = self.personal_model(client)
        loss = F.cross_entropy(model(x), y)
        alpha_gradient = 0.02 * alpha if self.o.compat == "pfllib" else 0.0
        found = torch.autograd.grad(loss, list(model.parameters()))
        for g, (v, w) in zip(found, self.parameter_pairs(client), strict=True):
            if self.o.compat == "pfllib":
                v.grad = g
                alpha_gradient += ((v - w).detach() * (alpha * g + (1 - alpha) * w.grad)).sum()
            else:
                v.grad = alpha * g
                alpha_gradient += ((v - w).detach() * g).sum()
        if self.o.adaptive:
            client.alpha.grad = alpha_gradient
        for kept, updated in zip(self.personal(client).buffers(), model.buffers(), strict=True):
            kept.copy_(updated)
        return loss.item()

    def personal(self, client):
        return torch.nn.Sequential(*(client.modules[name] for name in self.extra_modules))

    def personal_model(self, client):
        """Returns a copy of v with parameters ``alpha v + (1 - alpha) w``; for PFLlib a copy of v."""
        model = deepcopy(self.personal(client))
        if self.o.compat == "paper":
            for bar, (v, w) in zip(model.parameters(), self.parameter_pairs(client), strict=True):
                bar.data = client.alpha.data * v.data + (1 - client.alpha.data) * w.data
        return model

    def logits(self, client, x):
        return self.personal_model(client)(x)


class PerFedAvg(Federation):
    def train(self, client, number):
        train_mode(client)
        alpha = self.inner_lr(number)
        model = torch.nn.ModuleDict(client.modules)
        optimizer = self.sgd(model.parameters(), self.lr(number))
        epochs = self.settings.local_epochs * (2 if self.o.compat == "pfllib" else 1)
        for x, y, _ in self.batches(client, number, range(epochs)):
            half = math.ceil(len(y) / 2)
            first, second = ((x[:half], y[:half]), (x[half:], y[half:])) if len(y) >= 4 else ((x, y), (x, y))
            w = dict(model.named_parameters())
            _, g1 = self.gradients(model, w, first)
            loss, g = self.gradients(model, step_along(w, g1, -alpha), second)
            if self.o.hessian == "hessian-free":
                _, above = self.gradients(model, step_along(w, g, self.o.delta), first)
                _, below = self.gradients(model, step_along(w, g, -self.o.delta), first)
                g = {n: g[n] - alpha * (above[n] - below[n]) / (2 * self.o.delta) for n in g}
            for name, parameter in w.items():
                parameter.grad = g[name]
            optimizer.step()
            client.losses.append((len(y), loss))

    def inner_lr(self, number):
        return self.lr(number) if self.o.alpha is None else self.o.alpha

    def gradients(self, model, parameters, batch):
        """Returns loss and gradients of the model at ``parameters``; updates the model's running statistics."""
        parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        z = functional_call(model["extractor"], part_of(parameters, "extractor"), batch[0])
        loss = F.cross_entropy(functional_call(model["head"], part_of(parameters, "head"), z), batch[1])
        found = torch.autograd.grad(loss, list(parameters.values()))
        return loss.item(), dict(zip(parameters, found, strict=True))

    def predict(self, number, x):
        """Returns the logits after one step on a batch of the next round."""
        client, following = deepcopy(self.clients[number]), self.settings.rounds + 1
        train_mode(client)
        for batch in list(self.data.batches(number, following, 0))[:1]:
            self.loss(client, batch[0], batch[1], None).backward()
            for module in client.modules.values():
                for parameter in module.parameters():
                    parameter.data -= self.inner_lr(following) * parameter.grad
        for module in client.modules.values():
            module.eval()
        with torch.no_grad():
            return self.logits(client, x)


def step_along(parameters, direction, length):
    return {name: p.detach() + length * direction[name] for name, p in parameters.items()}


def part_of(parameters, part):
    return {name.removeprefix(part + "."): p for name, p in parameters.items() if name.startswith(part + ".")}
