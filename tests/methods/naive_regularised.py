"""Methods whose clients train one model with a term or a correction, once more from the papers alone."""

import torch
import torch.nn.functional as F  # noqa: N812

from tests.methods.naive import Federation, copies, give, load, mmd


class Finale(Federation):
    """After the last round every client trains alone from what it received; as it is: FedAvg and fine-tuning."""

    tuned = ("extractor", "head")

    def rounds(self):
        super().rounds()
        for client in self.clients:
            self.receive(client)
            self.epochs(client, self.settings.rounds + 1, range(self.o.fine_tuning_epochs), self.tuned)
        return self


class FedBABU(Finale):
    """The head waits for the fine-tuning."""

    shared, trained = ("extractor",), ("extractor",)

    @property
    def tuned(self):
        return {"full": ("extractor", "head"), "head": ("head",), "extractor": ("extractor",)}[self.o.tune]


class FedProx(Federation):
    hidden = ("start.",)

    def train(self, client, number):
        start = copies(self.mirror(client))

        def pull(client):
            for name, w in self.mirror(client).items():
                w.grad += self.o.mu * (w.detach() - start[name])

        self.epochs(client, number, range(self.settings.local_epochs), correct=pull)


class Scaffold(Federation):
    hidden = ("start.", "change.")

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        zeros = {name: torch.zeros_like(w) for name, w in copies(self.mirror(self.clients[0])).items()}
        self.notes["control"] = copies(zeros)
        for client in self.clients:
            client.notes = {"control": copies(zeros), "global_control": copies(zeros)}

    def receive(self, client, at_start=False):
        super().receive(client, at_start)
        client.notes["global_control"] = copies(self.notes["control"])

    def train(self, client, number):
        start, c_i, c = copies(self.mirror(client)), client.notes["control"], client.notes["global_control"]

        def correct(client):
            for name, w in self.mirror(client).items():
                w.grad += c[name] - c_i[name]

        steps = self.epochs(client, number, range(self.settings.local_epochs), correct=correct)
        client.change = {name: torch.zeros_like(w) for name, w in start.items()}
        if steps:
            for name, w in copies(self.mirror(client)).items():
                client.change[name] = -c[name] + (start[name] - w) / (steps * self.lr(number))
        client.notes["control"] = {name: c_i[name] + client.change[name] for name in c_i}

    def weights(self, uploading):
        return [1 / len(uploading)] * len(uploading)

    def aggregate(self, uploading):
        before = copies(self.mirror_of_server())
        super().aggregate(uploading)
        for name, x in self.mirror_of_server().items():
            x.data.copy_(before[name] + self.o.server_lr * (x.data - before[name]))
        for name, c in self.notes["control"].items():
            c += sum(client.change[name] for client in uploading) / len(self.clients)

    def mirror_of_server(self):
        return self.mirror(ServerAsClient(self.server))


class ServerAsClient:
    """The server's modules where a client's are expected."""

    def __init__(self, modules):
        self.modules = modules


class FedDyn(Scaffold):
    """Like SCAFFOLD it has corrections of gradients, other ones, and plain means."""

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        zeros = self.notes.pop("control")
        self.notes["correction"] = copies(zeros)
        for client in self.clients:
            client.notes = {"correction": copies(zeros)}

    def receive(self, client, at_start=False):
        Federation.receive(self, client, at_start)

    def train(self, client, number):
        start, h_i = copies(self.mirror(client)), client.notes["correction"]

        def correct(client):
            apart = {name: w.detach() - start[name] for name, w in self.mirror(client).items()}
            for name, w in self.mirror(client).items():
                w.grad += self.pull(apart, name) - h_i[name]

        self.epochs(client, number, range(self.settings.local_epochs), correct=correct)
        for name, w in copies(self.mirror(client)).items():
            h_i[name] -= self.o.alpha * (w - start[name])

    def pull(self, apart, name):
        if self.o.compat == "paper":
            return self.o.alpha * apart[name]
        norm = torch.cat([part.flatten() for part in apart.values()]).norm()
        return self.o.alpha / 2 * apart[name] / norm if norm > 0 else 0.0

    def aggregate(self, uploading):
        before = copies(self.mirror_of_server())
        Federation.aggregate(self, uploading)
        for name, w in self.mirror_of_server().items():
            h = self.notes["correction"][name]
            moved = sum(self.mirror(client)[name].detach() - before[name] for client in uploading)
            h -= self.o.alpha / len(self.clients) * moved
            w.data -= h / self.o.alpha


class Moon(Federation):
    beside = ("global_extractor", "previous_extractor")

    def receive_what_all_receive(self, client):
        super().receive_what_all_receive(client)
        give(self.server["extractor"], client.modules["global_extractor"], self.policy)

    def train(self, client, number):
        super().train(client, number)
        load(client.modules["previous_extractor"], client.modules["extractor"].state_dict())

    def loss(self, client, x, y, seed):
        m = client.modules
        z = m["extractor"](x)
        with torch.no_grad():
            z_g, z_prev = m["global_extractor"](x), m["previous_extractor"](x)
        contrast = []
        for mine, everyones, before in zip(z, z_g, z_prev, strict=True):
            near, far = (torch.exp(cosine(mine, other) / self.o.tau) for other in (everyones, before))
            contrast.append(-torch.log(near / (near + far)))
        return F.cross_entropy(m["head"](z), y) + self.o.mu * torch.stack(contrast).mean()


def cosine(a, b):
    """0 where a vector is 0."""
    return a @ b / (a.norm() * b.norm()).clamp(min=1e-16)


class FedPHP(Federation):
    beside = ("inherited_extractor", "inherited_head")

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
    shared, hidden = (), ("own.",)

    def __init__(self, method, experiment):
        super().__init__(method, experiment)
        classes, width = self.clients[0].modules["head"].weight.shape
        dtype = self.clients[0].modules["head"].weight.dtype
        self.notes["prototypes"] = nothing(classes, width, dtype)
        for client in self.clients:
            client.notes["prototypes"] = nothing(classes, width, dtype)

    def receive(self, client, at_start=False):
        client.notes["prototypes"] = copies(self.notes["prototypes"])

    def train(self, client, number):
        client.own = {c: [] for c in range(len(self.notes["prototypes"]["counts"]))}
        super().train(client, number)

    def loss(self, client, x, y, seed):
        m, prototypes = client.modules, client.notes["prototypes"]
        z = m["extractor"](x)
        apart = []
        for feature, label in zip(z, y.tolist(), strict=True):
            client.own[label].append(feature.detach())
            if prototypes["counts"][label] > 0:
                apart.append(((feature - prototypes["means"][label]) ** 2).mean())
        return F.cross_entropy(m["head"](z), y) + self.o.lam * sum(apart) / len(y)

    def aggregate(self, uploading):
        for c, count in enumerate(self.notes["prototypes"]["counts"]):
            held = [torch.stack(client.own[c]) for client in uploading if client.own[c]]
            if not held:
                continue
            mean = torch.cat(held).mean(0)
            if self.o.compat == "pfllib":
                mean = torch.stack([features.mean(0) for features in held]).mean(0)
            self.notes["prototypes"]["means"][c] = mean
            count.fill_(sum(len(features) for features in held))

    def logits(self, client, x):
        z = client.modules["extractor"](x)
        means, counts = client.notes["prototypes"]["means"], client.notes["prototypes"]["counts"]
        if self.o.inference == "head" or not (counts > 0).any():
            return client.modules["head"](z)
        distances = torch.stack([((z - mean) ** 2).sum(1) for mean in means], dim=1)
        farthest = distances[:, counts > 0].max(1).values
        return -torch.where(counts > 0, distances, farthest[:, None] + 1)


def nothing(classes, width, dtype):
    """Prototypes before anybody has any."""
    return {"means": torch.zeros(classes, width, dtype=dtype), "counts": torch.zeros(classes, dtype=dtype)}
