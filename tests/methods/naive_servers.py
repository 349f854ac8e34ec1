"""Methods whose clients get each their own mixture of models, and pFedVEM, once more from the papers alone."""

from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812

from pfl_fast.engine.sampling import sample
from pfl_fast.ops import reference
from pfl_fast.randomness import key
from tests.methods.naive import Federation, copies, exchanged, give, load, train_mode


def distance(one, other):
    """Of two models, given by their parameters."""
    return torch.sqrt(sum(((one[name] - other[name]).detach() ** 2).sum() for name in one))


class FedAMP(Federation):
    shared, hidden = (), ("model_extractor.", "model_head.")

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        for client in self.clients:
            client.modules |= {f"cloud_{part}": deepcopy(client.modules[part]) for part in ("extractor", "head")}

    def train(self, client, number):
        cloud = copies(self.mirror(client, "cloud_"))

        def pull(client):
            for name, w in self.mirror(client).items():
                w.grad += self.o.lam / self.o.alpha_k * (w.detach() - cloud[name])

        self.epochs(client, number, range(self.settings.local_epochs), correct=pull)

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
        """If it is not given, the mean squared distance of two clients."""
        models = [self.mirror(client) for client in uploading]
        squares = [distance(one, other) ** 2 for one in models for other in models if one is not other]
        return self.o.sigma if self.o.sigma is not None else sum(squares) / len(squares)

    def attention(self, one, other, sigma):
        apart = distance(self.mirror(one), self.mirror(other)) ** 2
        return self.o.alpha_k / sigma * torch.exp(-apart / sigma)


class FedFomo(Federation):
    shared, hidden = (), ("model_extractor.", "model_head.")

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        n = len(self.clients)
        self.notes["affinity"] = {"": torch.zeros(n, n, dtype=self.clients[0].modules["head"].weight.dtype)}
        for client in self.clients:
            client.notes["start"] = copies(self.mirror(client))

    def train(self, client, number):
        client.notes["start"] = copies(self.mirror(client))
        super().train(client, number)

    def aggregate(self, uploading):
        # of all before anybody changes
        models = {c.number: [copies(exchanged(c.modules[p], self.policy)) for p in self.trained] for c in uploading}
        sent = {c.number: copies(self.mirror(c)) for c in uploading}
        mixtures = {c.number: self.weights_of(c, models, sent) for c in uploading}
        for client in uploading:
            weights = mixtures[client.number]
            if not weights:
                continue
            for place, part in enumerate(self.trained):
                for name, tensor in exchanged(client.modules[part], self.policy).items():
                    if tensor.is_floating_point():
                        tensor.copy_(sum(w * models[j][place][name] for j, w in weights.items()))

    def weights_of(self, client, models, sent):
        """By number of the other client; nothing if it is best off with what it has."""
        i, start = client.number, client.notes["start"]
        before = self.validation_loss(client, None, start)
        raw = {}
        for j in self.candidates(i, list(models)):
            norm = distance(sent[j], start)
            gain = before - self.validation_loss(client, models[j], sent[j])
            raw[j] = gain / norm if norm > 0 else torch.zeros_like(norm)
            self.notes["affinity"][""][i, j] += raw[j]
        total = sum(max(r, 0.0) for r in raw.values())
        return {j: max(r, 0.0) / total for j, r in raw.items()} if total > 0 else {}

    def candidates(self, i, numbers):
        row = self.notes["affinity"][""][i]
        others = sorted((j for j in numbers if j != i), key=lambda j: (-row[j].item(), (j - i) % len(row)))
        return [i, *others[: self.o.m - 1]]

    def validation_loss(self, client, model, parameters):
        """Of the client's model with a model's exchanged tensors, if there is one, and with these parameters."""
        tried = deepcopy(client)
        for place, part in enumerate(self.trained if model else ()):
            load(tried.modules[part], model[place])
        for name, parameter in self.mirror(tried).items():
            parameter.data.copy_(parameters[name])
        for module in tried.modules.values():
            module.eval()
        samples = self.data.indices("validation", client.number)
        x, y = self.data.take(samples if len(samples) else self.data.indices("train", client.number))
        with torch.no_grad():
            return F.cross_entropy(self.logits(tried, x), y)


class FedALA(Federation):
    """A client's ``started`` says whether its weights W have been learned once."""

    beside = ("global_extractor", "global_head")
    hidden = ("ala.started", "ala.learning", "ala.losses", "ala.count")
    records = False

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        for client in self.clients:
            client.started = False
            top = self.top(client)
            client.weights = {name: torch.ones_like(p) for name, p in top.items()}

    def top(self, client, before=""):
        """Parameters of the last layers, by name."""
        layers = []
        for part in ("extractor", "head"):
            for path, layer in client.modules[before + part].named_modules():
                own = dict(layer.named_parameters(path, recurse=False))
                if own:
                    layers.append({f"{part}.{name}": parameter for name, parameter in own.items()})
        return {name: p for layer in layers[len(layers) - self.o.layer_idx :] for name, p in layer.items()}

    def receive(self, client, at_start=False):
        for part in self.shared:
            give(self.server[part], client.modules[f"global_{part}"], self.policy)

    def receive_what_all_receive(self, client):
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
        """Adaptive local aggregation: the model becomes the mixture."""
        local, everyones = copies(self.top(client)), copies(self.top(client, "global_"))
        for part in self.shared:
            load(client.modules[part], exchanged(client.modules[f"global_{part}"], self.policy))
        trial, losses = deepcopy(client), []
        for epoch in range(1 if client.started else self.o.start_epochs):
            losses.append(self.learn(client, trial, local, everyones, number, epoch))
            if len(losses) > 10 and torch.tensor(losses[-10:]).double().std(correction=0) < self.o.threshold:
                break
        client.started = True
        self.mix(client, client.weights, local, everyones)

    def learn(self, client, trial, local, everyones, number, epoch):
        """One epoch of the weights; returns the last loss."""
        batches = list(self.data.batches(client.number, number, epoch))
        loss = torch.tensor(0.0)
        train_mode(trial)
        for x, y, _ in batches[: max(1, int(self.o.rand_percent / 100 * len(batches) + 0.5))]:
            self.mix(trial, client.weights, local, everyones)
            loss = self.loss(trial, x, y, None)
            top = self.top(trial)
            for name, g in zip(top, torch.autograd.grad(loss, list(top.values())), strict=True):
                step = self.o.eta * g * (everyones[name] - local[name])
                client.weights[name] = (client.weights[name] - step).clamp(0, 1)
        return loss.item()

    def mix(self, client, weights, local, everyones):
        for name, parameter in self.top(client).items():
            parameter.data.copy_(local[name] + (everyones[name] - local[name]) * weights[name])

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
    """``head`` is the posterior's mean, ``spread`` gives its deviation, ``prior`` is the server's head."""

    beside = ("spread", "prior")
    hidden = ("variance.",)

    def receive(self, client, at_start=False):
        give(self.server["extractor"], client.modules["extractor"], self.policy)
        give(self.server["head"], client.modules["prior"], self.policy)

    def receive_what_all_receive(self, client):
        self.receive(client)

    def train(self, client, number):
        m = client.modules
        prior = [p.detach().clone() for p in m["prior"].parameters()]
        apart = sum(((a - b).detach() ** 2).sum() for a, b in zip(m["head"].parameters(), prior, strict=True))
        spread = sum((F.softplus(s.detach()) ** 2).sum() for s in m["spread"].parameters())
        client.variance = (apart + spread) / sum(p.numel() for p in prior)
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
            x, y = (torch.cat([batch[place] for batch in batches]) for place in (0, 1))
            seed = key(self.settings.seed, "noise", client.number, number, epoch)
            with torch.no_grad():
                z = m["extractor"](x)
            optimizer.zero_grad()
            loss = self.sampled_loss(client, z, y, seed, "sum") + self.divergence(client)
            loss.backward()
            optimizer.step()
            client.losses.append((len(y), loss.item()))

    def sampled_loss(self, client, z, y, seed, reduction):
        """Mean over sampled heads."""
        drawn = []
        both = zip(client.modules["head"].parameters(), client.modules["spread"].parameters(), strict=True)
        for t, (mean, spread) in enumerate(both):
            u = reference.philox_uniform(torch.tensor(seed ^ (t + 1)), (self.o.samples, *mean.shape)).to(mean.dtype)
            eps = 2**0.5 * torch.erfinv(2 * u - 1)
            drawn.append([mean + F.softplus(spread) * e for e in eps])
        losses = [F.cross_entropy(F.linear(z, *head), y, reduction=reduction) for head in zip(*drawn, strict=True)]
        return sum(losses) / self.o.samples

    def divergence(self, client):
        """KL(q || N(m_g, rho^2 I)), number by number."""
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
