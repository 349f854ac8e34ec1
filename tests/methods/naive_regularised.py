"""Naive methods that regularise or correct the training of one model, written from the papers."""

import torch
import torch.nn.functional as F  # noqa: N812

from tests.methods.naive import Federation, copies, copy_exchanged, load, mmd


class FedAvgFT(Federation):
    """After the last round every client fine-tunes the received model."""

    fine_tuned_parts = ("extractor", "head")

    def rounds(self):
        super().rounds()
        for client in self.clients:
            self.receive(client)
            self.epochs(client, self.settings.rounds + 1, range(self.o.fine_tuning_epochs), self.fine_tuned_parts)
        return self


class FedBABU(FedAvgFT):
    """The head is trained only in the fine-tuning."""

    shared, trained = ("extractor",), ("extractor",)

    @property
    def fine_tuned_parts(self):
        return {"full": ("extractor", "head"), "head": ("head",), "extractor": ("extractor",)}[self.o.tune]


class FedProx(Federation):
    not_compared = ("start.",)

    def train(self, client, number):
        start = copies(self.exchanged_parameters(client))

        def add_proximal_term(client):
            for name, w in self.exchanged_parameters(client).items():
                w.grad += self.o.mu * (w.detach() - start[name])

        self.epochs(client, number, range(self.settings.local_epochs), edit_gradients=add_proximal_term)


class Scaffold(Federation):
    not_compared = ("start.", "change.")

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        zeros = {name: torch.zeros_like(w) for name, w in copies(self.exchanged_parameters(self.clients[0])).items()}
        self.state["control"] = copies(zeros)
        for client in self.clients:
            client.state = {"control": copies(zeros), "global_control": copies(zeros)}

    def receive(self, client, at_start=False):
        super().receive(client, at_start)
        client.state["global_control"] = copies(self.state["control"])

    def train(self, client, number):
        start = copies(self.exchanged_parameters(client))
        c_i, c = client.state["control"], client.state["global_control"]

        def correct(client):
            for name, w in self.exchanged_parameters(client).items():
                w.grad += c[name] - c_i[name]

        steps = self.epochs(client, number, range(self.settings.local_epochs), edit_gradients=correct)
        client.change = {name: torch.zeros_like(w) for name, w in start.items()}
        if steps:
            for name, w in copies(self.exchanged_parameters(client)).items():
                client.change[name] = -c[name] + (start[name] - w) / (steps * self.lr(number))
        client.state["control"] = {name: c_i[name] + client.change[name] for name in c_i}

    def weights(self, uploading):
        return [1 / len(uploading)] * len(uploading)

    def aggregate(self, uploading):
        before = copies(self.server_parameters())
        super().aggregate(uploading)
        for name, x in self.server_parameters().items():
            x.data.copy_(before[name] + self.o.server_lr * (x.data - before[name]))
        for name, c in self.state["control"].items():
            c += sum(client.change[name] for client in uploading) / len(self.clients)

    def server_parameters(self):
        return self.exchanged_parameters(ServerAsClient(self.server))


class ServerAsClient:
    """Makes the server's modules look like a client's."""

    def __init__(self, modules):
        self.modules = modules


class FedDyn(Scaffold):
    """Corrects gradients and averages without weights, as SCAFFOLD does."""

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        zeros = self.state.pop("control")
        self.state["correction"] = copies(zeros)
        for client in self.clients:
            client.state = {"correction": copies(zeros)}

    def receive(self, client, at_start=False):
        Federation.receive(self, client, at_start)

    def train(self, client, number):
        start, h_i = copies(self.exchanged_parameters(client)), client.state["correction"]

        def correct(client):
            difference = {name: w.detach() - start[name] for name, w in self.exchanged_parameters(client).items()}
            for name, w in self.exchanged_parameters(client).items():
                w.grad += self.proximal_gradient(difference, name) - h_i[name]

        self.epochs(client, number, range(self.settings.local_epochs), edit_gradients=correct)
        for name, w in copies(self.exchanged_parameters(client)).items():
            h_i[name] -= self.o.alpha * (w - start[name])

    def proximal_gradient(self, difference, name):
        if self.o.compat == "paper":
            return self.o.alpha * difference[name]
        norm = torch.cat([part.flatten() for part in difference.values()]).norm()
        return self.o.alpha / 2 * difference[name] / norm if norm > 0 else 0.0

    def aggregate(self, uploading):
        before = copies(self.server_parameters())
        Federation.aggregate(self, uploading)
        for name, w in self.server_parameters().items():
            h = self.state["correction"][name]
            total = sum(self.exchanged_parameters(client)[name].detach() - before[name] for client in uploading)
            h -= self.o.alpha / len(self.clients) * total
            w.data -= h / self.o.alpha


class Moon(Federation):
    extra_modules = ("global_extractor", "previous_extractor")

    def receive_broadcast(self, client):
        super().receive_broadcast(client)
        copy_exchanged(self.server["extractor"], client.modules["global_extractor"], self.policy)

    def train(self, client, number):
        super().train(client, number)
        load(client.modules["previous_extractor"], client.modules["extractor"].state_dict())

    def loss(self, client, x, y, seed):
        m = client.modules
        z = m["extractor"](x)
        with torch.no_grad():
            z_g, z_prev = m["global_extractor"](x), m["previous_extractor"](x)
        contrast = []
        for own, global_, previous in zip(z, z_g, z_prev, strict=True):
            near, far = (torch.exp(cosine(own, other) / self.o.tau) for other in (global_, previous))
            contrast.append(-torch.log(near / (near + far)))
        return F.cross_entropy(m["head"](z), y) + self.o.mu * torch.stack(contrast).mean()


def cosine(a, b):
    """Returns the cosine similarity, 0 if a vector is zero."""
    return a @ b / (a.norm() * b.norm()).clamp(min=1e-16)


class FedPHP(Federation):
    extra_modules = ("inherited_extractor", "inherited_head")

    def train(self, client, number):
        super().train(client, number)
        mu = self.o.mu * number / self.settings.rounds
        for part in ("extractor", "head"):
            w = client.modules[part].state_dict()
            for name, p in client.modules[f"inherited_{part}"].state_dict().items():
                p.copy_(mu * p + (1 - mu) * w[name] if p.is_floating_point() else w[name])

    def loss(self, client, x, y, seed):
        m = client.modules
        z = m["extractor"](x)
        with torch.no_grad():
            z_p = m["inherited_extractor"](x)
        return (1 - self.o.lam) * F.cross_entropy(m["head"](z), y) + self.o.lam * mmd(z, z_p)

    def logits(self, client, x):
        m = client.modules
        if self.o.inference == "local":
            return m["head"](m["extractor"](x))
        return m["inherited_head"](m["inherited_extractor"](x))


class FedProto(Federation):
    shared, not_compared = (), ("local_prototypes.",)

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        classes, width = self.clients[0].modules["head"].weight.shape
        dtype = self.clients[0].modules["head"].weight.dtype
        self.state["prototypes"] = no_prototypes(classes, width, dtype)
        for client in self.clients:
            client.state["prototypes"] = no_prototypes(classes, width, dtype)

    def receive(self, client, at_start=False):
        client.state["prototypes"] = copies(self.state["prototypes"])

    def train(self, client, number):
        client.own = {c: [] for c in range(len(self.state["prototypes"]["counts"]))}
        super().train(client, number)

    def loss(self, client, x, y, seed):
        m, prototypes = client.modules, client.state["prototypes"]
        z = m["extractor"](x)
        difference = []
        for feature, label in zip(z, y.tolist(), strict=True):
            client.own[label].append(feature.detach())
            if prototypes["counts"][label] > 0:
                difference.append(((feature - prototypes["means"][label]) ** 2).mean())
        return F.cross_entropy(m["head"](z), y) + self.o.lam * sum(difference) / len(y)

    def aggregate(self, uploading):
        for c, count in enumerate(self.state["prototypes"]["counts"]):
            held = [torch.stack(client.own[c]) for client in uploading if client.own[c]]
            if not held:
                continue
            mean = torch.cat(held).mean(0)
            if self.o.compat == "pfllib":
                mean = torch.stack([features.mean(0) for features in held]).mean(0)
            self.state["prototypes"]["means"][c] = mean
            count.fill_(sum(len(features) for features in held))

    def logits(self, client, x):
        z = client.modules["extractor"](x)
        means, counts = client.state["prototypes"]["means"], client.state["prototypes"]["counts"]
        if self.o.inference == "head" or not (counts > 0).any():
            return client.modules["head"](z)
        distances = torch.stack([((z - mean) ** 2).sum(1) for mean in means], dim=1)
        farthest = distances[:, counts > 0].max(1).values
        return -torch.where(counts > 0, distances, farthest[:, None] + 1)


def no_prototypes(classes, width, dtype):
    """Returns the initial prototypes, with counts of 0."""
    return {"means": torch.zeros(classes, width, dtype=dtype), "counts": torch.zeros(classes, dtype=dtype)}
