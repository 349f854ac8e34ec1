"""Naive methods that compute a mixture of models for each client, and pFedVEM, written from the papers."""

from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812

from pfl_fast.engine.sampling import sample
from pfl_fast.ops import reference
from pfl_fast.randomness import key
from tests.methods.naive import Federation, copies, copy_exchanged, exchanged, load, train_mode


def distance(one, other):
    """Returns the distance of two models, given by their parameters."""
    return torch.sqrt(sum(((one[name] - other[name]).detach() ** 2).sum() for name in one))


class FedAMP(Federation):
    shared, not_compared = (), ("model_extractor.", "model_head.")

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        for client in self.clients:
            client.modules |= {f"cloud_{part}": deepcopy(client.modules[part]) for part in ("extractor", "head")}

    def train(self, client, number):
        cloud = copies(self.exchanged_parameters(client, "cloud_"))

        def add_proximal_term(client):
            for name, w in self.exchanged_parameters(client).items():
                w.grad += self.o.lam / self.o.alpha_k * (w.detach() - cloud[name])

        self.epochs(client, number, range(self.settings.local_epochs), edit_gradients=add_proximal_term)

    def aggregate(self, uploading):
        for client in uploading:
            others = [other for other in uploading if other is not client]
            xi = [self.attention(client, other, self.sigma(uploading)) for other in others]
            if sum(xi) > 1:
                xi = [x / sum(xi) for x in xi]
            for part in ("extractor", "head"):
                mine = exchanged(client.modules[part], self.policy)
                theirs = [exchanged(other.modules[part], self.policy) for other in others]
                for name, u in exchanged(client.modules[f"cloud_{part}"], self.policy).items():
                    if u.is_floating_point():
                        mixed = sum(x * model[name] for x, model in zip(xi, theirs, strict=True))
                        u.copy_(mixed + (1 - sum(xi)) * mine[name])

    def sigma(self, uploading):
        """Returns the option sigma; without it, the mean squared distance of two clients."""
        models = [self.exchanged_parameters(client) for client in uploading]
        squares = [distance(one, other) ** 2 for one in models for other in models if one is not other]
        return self.o.sigma if self.o.sigma is not None else sum(squares) / len(squares)

    def attention(self, one, other, sigma):
        difference = distance(self.exchanged_parameters(one), self.exchanged_parameters(other)) ** 2
        return self.o.alpha_k / sigma * torch.exp(-difference / sigma)


class FedFomo(Federation):
    shared, not_compared = (), ("model_extractor.", "model_head.")

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        n = len(self.clients)
        self.state["affinity"] = {"": torch.zeros(n, n, dtype=self.clients[0].modules["head"].weight.dtype)}
        for client in self.clients:
            client.state["start"] = copies(self.exchanged_parameters(client))

    def train(self, client, number):
        client.state["start"] = copies(self.exchanged_parameters(client))
        super().train(client, number)

    def aggregate(self, uploading):
        # copies of all models, as clients are overwritten one by one
        models = {c.number: [copies(exchanged(c.modules[p], self.policy)) for p in self.trained] for c in uploading}
        sent = {c.number: copies(self.exchanged_parameters(c)) for c in uploading}
        mixtures = {c.number: self.weights_of(c, models, sent) for c in uploading}
        for client in uploading:
            weights = mixtures[client.number]
            if not weights:
                continue
            for index, part in enumerate(self.trained):
                for name, tensor in exchanged(client.modules[part], self.policy).items():
                    if tensor.is_floating_point():
                        tensor.copy_(sum(w * models[j][index][name] for j, w in weights.items()))

    def weights_of(self, client, models, sent):
        """Returns the weights by client number; empty if no model reduces the loss."""
        i, start = client.number, client.state["start"]
        before = self.validation_loss(client, None, start)
        raw = {}
        for j in self.candidates(i, list(models)):
            norm = distance(sent[j], start)
            gain = before - self.validation_loss(client, models[j], sent[j])
            raw[j] = gain / norm if norm > 0 else torch.zeros_like(norm)
            self.state["affinity"][""][i, j] += raw[j]
        total = sum(max(r, 0.0) for r in raw.values())
        return {j: max(r, 0.0) / total for j, r in raw.items()} if total > 0 else {}

    def candidates(self, i, numbers):
        row = self.state["affinity"][""][i]
        others = sorted((j for j in numbers if j != i), key=lambda j: (-row[j].item(), (j - i) % len(row)))
        return [i, *others[: self.o.m - 1]]

    def validation_loss(self, client, model, parameters):
        """Returns the validation loss of the client with the tensors of ``model``, if any, and ``parameters``."""
        tried = deepcopy(client)
        for index, part in enumerate(self.trained if model else ()):
            load(tried.modules[part], model[index])
        for name, parameter in self.exchanged_parameters(tried).items():
            parameter.data.copy_(parameters[name])
        for module in tried.modules.values():
            module.eval()
        samples = self.data.indices("validation", client.number)
        x, y = self.data.take(samples if len(samples) else self.data.indices("train", client.number))
        with torch.no_grad():
            return F.cross_entropy(self.logits(tried, x), y)


class FedALA(Federation):
    """``client.started`` is True once its weights W have been trained."""

    extra_modules = ("global_extractor", "global_head")
    not_compared = ("ala.started", "ala.learning", "ala.losses", "ala.count")
    compares_losses = False

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        for client in self.clients:
            client.started = False
            top = self.top(client)
            client.weights = {name: torch.ones_like(p) for name, p in top.items()}

    def top(self, client, prefix=""):
        """Returns the parameters of the top layers of ``<prefix>extractor`` and ``<prefix>head``, by name."""
        layers = []
        for part in ("extractor", "head"):
            for path, layer in client.modules[prefix + part].named_modules():
                own = dict(layer.named_parameters(path, recurse=False))
                if own:
                    layers.append({f"{part}.{name}": parameter for name, parameter in own.items()})
        return {name: p for layer in layers[len(layers) - self.o.layer_idx :] for name, p in layer.items()}

    def receive(self, client, at_start=False):
        for part in self.shared:
            copy_exchanged(self.server[part], client.modules[f"global_{part}"], self.policy)

    def receive_broadcast(self, client):
        self.receive(client)

    def round(self, number):
        cohort = sample(self.settings, len(self.clients), number)
        self.all_join = len(cohort.training) == len(self.clients)
        super().round(number)

    def train(self, client, number):
        first = 0
        if number > 1:
            self.adapt(client, number)
            first = 1 if self.all_join and number > 2 else self.o.start_epochs
        self.epochs(client, number, range(first, first + self.settings.local_epochs))

    def adapt(self, client, number):
        """Trains the weights W and overwrites the model by the mixture."""
        local, global_ = copies(self.top(client)), copies(self.top(client, "global_"))
        for part in self.shared:
            load(client.modules[part], exchanged(client.modules[f"global_{part}"], self.policy))
        trial, losses = deepcopy(client), []
        for epoch in range(1 if client.started else self.o.start_epochs):
            losses.append(self.train_weights(client, trial, local, global_, number, epoch))
            if len(losses) > 10 and torch.tensor(losses[-10:]).double().std(correction=0) < self.o.threshold:
                break
        client.started = True
        self.mix(client, client.weights, local, global_)

    def train_weights(self, client, trial, local, global_, number, epoch):
        """Trains the weights W for one epoch; returns the last loss."""
        batches = list(self.data.batches(client.number, number, epoch))
        loss = torch.tensor(0.0)
        train_mode(trial)
        for x, y, _ in batches[: max(1, int(self.o.rand_percent / 100 * len(batches) + 0.5))]:
            self.mix(trial, client.weights, local, global_)
            loss = self.loss(trial, x, y, None)
            top = self.top(trial)
            for name, g in zip(top, torch.autograd.grad(loss, list(top.values())), strict=True):
                step = self.o.eta * g * (global_[name] - local[name])
                client.weights[name] = (client.weights[name] - step).clamp(0, 1)
        return loss.item()

    def mix(self, client, weights, local, global_):
        for name, parameter in self.top(client).items():
            parameter.data.copy_(local[name] + (global_[name] - local[name]) * weights[name])

    def predict(self, number, x):
        client = deepcopy(self.clients[number])
        self.adapt(client, self.settings.rounds + 1)
        for module in client.modules.values():
            module.eval()
        with torch.no_grad():
            return self.logits(client, x)

    def tensors(self):
        found = super().tensors()
        for client in self.clients:
            found.update({f"client {client.number} ala.weights.{name}": w for name, w in client.weights.items()})
        return found


class PFedVEM(Federation):
    """``head`` is the posterior's mean, softplus(``spread``) its standard deviation, ``prior`` the server's head."""

    extra_modules = ("spread", "prior")
    not_compared = ("variance.",)

    def receive(self, client, at_start=False):
        copy_exchanged(self.server["extractor"], client.modules["extractor"], self.policy)
        copy_exchanged(self.server["head"], client.modules["prior"], self.policy)

    def receive_broadcast(self, client):
        self.receive(client)

    def train(self, client, number):
        m = client.modules
        prior = [p.detach().clone() for p in m["prior"].parameters()]
        difference = sum(((a - b).detach() ** 2).sum() for a, b in zip(m["head"].parameters(), prior, strict=True))
        spread = sum((F.softplus(s.detach()) ** 2).sum() for s in m["spread"].parameters())
        client.variance = (difference + spread) / sum(p.numel() for p in prior)
        train_mode(client)
        self.head_phase(client, number)
        optimizer = self.sgd(m["extractor"].parameters(), self.lr(number))
        epochs = range(self.o.head_epochs, self.o.head_epochs + self.settings.local_epochs)
        for x, y, seed in self.batches(client, number, epochs, step=self.o.head_epochs):
            optimizer.zero_grad()
            loss = self.sampled_loss(client, m["extractor"](x), y, seed, "mean")
            loss.backward()
            optimizer.step()
            client.losses.append((len(y), loss.item()))

    def head_phase(self, client, number):
        m = client.modules
        parameters = [*m["head"].parameters(), *m["spread"].parameters()]
        optimizer = torch.optim.SGD(parameters, self.o.head_lr, self.o.head_momentum)
        for epoch in range(self.o.head_epochs):
            batches = list(self.data.batches(client.number, number, epoch))
            if not batches:
                continue
            x, y = (torch.cat([batch[index] for batch in batches]) for index in (0, 1))
            seed = key(self.settings.seed, "noise", client.number, number, epoch)
            with torch.no_grad():
                z = m["extractor"](x)
            optimizer.zero_grad()
            loss = self.sampled_loss(client, z, y, seed, "sum") + self.divergence(client)
            loss.backward()
            optimizer.step()
            client.losses.append((len(y), loss.item()))

    def sampled_loss(self, client, z, y, seed, reduction):
        """Returns the mean loss over the sampled heads."""
        drawn = []
        both = zip(client.modules["head"].parameters(), client.modules["spread"].parameters(), strict=True)
        for t, (mean, spread) in enumerate(both):
            u = reference.philox_uniform(torch.tensor(seed ^ (t + 1)), (self.o.draws, *mean.shape)).to(mean.dtype)
            eps = 2**0.5 * torch.erfinv(2 * u - 1)
            drawn.append([mean + F.softplus(spread) * e for e in eps])
        losses = [F.cross_entropy(F.linear(z, *head), y, reduction=reduction) for head in zip(*drawn, strict=True)]
        return sum(losses) / self.o.draws

    def divergence(self, client):
        """Returns ``KL(q || N(m_g, rho^2 I))``, summed over the elements."""
        m, variance = client.modules, client.variance
        total = 0.0
        for mean, spread, prior in zip(*(m[n].parameters() for n in ("head", "spread", "prior")), strict=True):
            q = torch.distributions.Normal(mean, F.softplus(spread))
            p = torch.distributions.Normal(prior.detach(), variance.sqrt().expand_as(mean))
            total = total + torch.distributions.kl_divergence(q, p).sum()
        return total

    def aggregate(self, uploading):
        super().aggregate(uploading)
        total = sum(1 / client.variance for client in uploading)
        for name, tensor in exchanged(self.server["head"], self.policy).items():
            uploads = [client.modules["head"].state_dict()[name] / client.variance for client in uploading]
            tensor.copy_(sum(uploads) / total)
