"""Naive PartialFed, written from the paper: modules copied tensor by tensor, plain loops, torch's optimizers.

The package provides only the order of batches, the sampled clients, the initial weights and the noise.
"""

from copy import deepcopy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812

from pfl_fast.engine.sampling import sample
from pfl_fast.models import Backbone
from pfl_fast.ops import reference
from pfl_fast.randomness import key


@dataclass
class NaiveClient:
    """One client: the model, and for PartialFed-Adaptive the logits a."""

    number: int
    model: Backbone
    a: torch.Tensor | None = None
    losses: list = field(default_factory=list)  # (number of samples, loss) of every step


class Federation:
    """Common to both methods: all tensors are averaged, and clients fine-tune after the last round."""

    def __init__(self, experiment, initial):
        self.data, self.s, self.o = experiment.data, experiment.settings, experiment.options
        self.server = deepcopy(initial)
        self.clients = [NaiveClient(i, deepcopy(initial)) for i in range(self.data.clients)]

    def rounds(self):
        for number in range(1, self.s.rounds + 1):
            cohort = sample(self.s, len(self.clients), number)
            for i in cohort.training:
                self.train(self.clients[i], number)
            self.average([self.clients[i] for i in cohort.uploading])
            for i in cohort.receiving:
                self.receive(self.clients[i])
        for client in self.clients:
            if self.s.finetune_epochs:
                self.receive(client)
                optimizer = self.sgd([client.model], self.s.finetune_lr)
                self.epochs(client, optimizer, self.s.rounds + 1, 0, self.s.finetune_epochs, 0)
        return self

    def average(self, uploading):
        sizes = [len(self.data.indices("train", c.number)) for c in uploading]
        states = [c.model.state_dict() for c in uploading]
        for name, tensor in self.server.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(sum(n / sum(sizes) * state[name] for n, state in zip(sizes, states, strict=True)))
            else:
                tensor.copy_(states[0][name])

    def sgd(self, models, lr=None):
        parameters = [p for model in models for p in model.parameters()]
        return torch.optim.SGD(parameters, lr or self.s.lr, self.s.momentum, weight_decay=self.s.weight_decay)

    def epochs(self, client, optimizer, number, first, count, step):
        """Trains the client's model by SGD; returns the number of the next step."""
        client.model.train()
        for epoch in range(first, first + count):
            for x, y, _ in self.data.batches(client.number, number, epoch):
                optimizer.zero_grad()
                loss = F.cross_entropy(client.model(x), y)
                loss.backward()
                optimizer.step()
                client.losses.append((len(y), loss.item()))
                step += 1
        return step


class Fix(Federation):
    """PartialFed-Fix; ``is_loaded(name)`` is True for tensors that clients load from the server."""

    def __init__(self, experiment, initial, is_loaded):
        super().__init__(experiment, initial)
        self.is_loaded = is_loaded

    def receive(self, client):
        for name, tensor in client.model.state_dict().items():
            if self.is_loaded(name):
                tensor.copy_(self.server.state_dict()[name])

    def train(self, client, number):
        self.receive(client)
        self.epochs(client, self.sgd([client.model]), number, 0, self.s.local_epochs, 0)


class Adaptive(Federation):
    """PartialFed-Adaptive; ``group_of(name)`` is the index of a tensor's group, from 0 to ``k - 1``."""

    def __init__(self, experiment, initial, group_of, k):
        super().__init__(experiment, initial)
        self.group_of = group_of
        for client in self.clients:
            client.a = torch.zeros(k, 2, dtype=torch.float64, requires_grad=True)

    def receive(self, client):
        """Does nothing: ``train`` copies the global model in every round."""

    def tau(self, number):
        t = number - 1
        if self.o.annealing == "linear":
            return max(self.o.tau * (1 - t / self.s.rounds), self.o.tau_floor)
        return max(self.o.tau * self.o.tau_decay**t, self.o.tau_floor)

    def train(self, client, number):
        loc, glo, a = client.model, deepcopy(self.server), client.a
        of_weights = self.sgd([loc, glo])
        if self.o.policy_optimizer == "adam":
            of_policy = torch.optim.Adam([a], lr=self.o.policy_lr)
        else:
            of_policy = torch.optim.SGD([a], self.s.lr if self.o.policy_lr is None else self.o.policy_lr)
        step = 0
        for epoch in range(self.s.local_epochs):
            for b, (x, y, _) in enumerate(self.data.batches(client.number, number, epoch)):
                seed = key(self.s.seed, "noise", client.number, number, step)
                uniform = reference.philox_uniform(torch.tensor(seed), a.shape).double()
                noise = -torch.log(-torch.log(uniform))
                with torch.no_grad():
                    u = torch.softmax((torch.log_softmax(a, dim=1) + noise) / self.tau(number), dim=1)
                picked = u.argmax(dim=1)
                loss, gradients = self.loss_and_gradients(loc, glo, picked, x, y)
                client.losses.append((len(y), loss))
                if b % (self.o.f_m + self.o.f_s) < self.o.f_m:
                    of_weights.zero_grad()
                    for name, gradient in gradients.items():
                        # SGD skips parameters without a gradient, momentum and weight decay included
                        (glo if picked[self.group_of(name)] else loc).get_parameter(name).grad = gradient
                    of_weights.step()
                else:
                    products = torch.zeros(len(a), dtype=torch.float64)
                    for name, gradient in gradients.items():
                        difference = glo.get_parameter(name) - loc.get_parameter(name)
                        products[self.group_of(name)] += (gradient * difference.detach()).sum()
                    gradient = u[:, 0] * u[:, 1] / self.tau(number) * products
                    a.grad = torch.stack([-gradient, gradient], dim=1)
                    of_policy.step()
                step += 1
        self.sample(client, glo)
        if self.o.soft_finetune != "last" and self.o.sample == "soft":
            self.epochs(client, of_weights, number, self.s.local_epochs, 1, step)

    def loss_and_gradients(self, loc, glo, picked, x, y):
        """Returns loss and gradients of the picked copies; updates their running statistics."""
        together = deepcopy(loc).train()
        copies = [loc.state_dict(), glo.state_dict()]
        for name, tensor in together.state_dict().items():
            tensor.copy_(copies[picked[self.group_of(name)]][name])
        loss = F.cross_entropy(together(x), y)
        loss.backward()
        for name, buffer in together.named_buffers():
            copies[picked[self.group_of(name)]][name].copy_(buffer)
        return loss.item(), {name: p.grad for name, p in together.named_parameters()}

    def sample(self, client, glo):
        alpha = torch.softmax(client.a.detach(), dim=1)
        for name, local in client.model.state_dict().items():
            global_, share = glo.state_dict()[name], alpha[self.group_of(name)]
            if self.o.sample == "soft" and local.is_floating_point():
                local.copy_(share[0] * local + share[1] * global_)
            elif share[1] > share[0]:
                local.copy_(global_)
