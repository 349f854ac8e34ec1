"""Naive FedAFK, written from the paper: plain modules, the mixture as a separate module, gradients by hand."""

from copy import deepcopy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812

from tests.methods.naive import Federation, copy_exchanged


@dataclass
class NaiveClient:
    """One client: modules by name, and mu."""

    number: int
    modules: dict
    mu: torch.Tensor
    losses: list = field(default_factory=list)  # (number of samples, loss) of every step
    mus: list = field(default_factory=list)  # (number of samples, mu before the step) of every step


class AFKFederation(Federation):
    def __init__(self, method, experiment):
        self.method, self.data, self.settings = method, experiment.data, experiment.settings
        self.o = experiment.options
        self.lam = self.o.lam if self.o.kt else 0.0
        self.policy = experiment.part_table.batch_norm
        initial = deepcopy(experiment.part_table.client)
        dtype = initial.head.weight.dtype
        self.clients = []
        for i in range(self.data.clients):
            extractor, head = initial.extractor, initial.head
            modules = {"extractor": extractor, "global_extractor": extractor, "head": head, "random_head": head}
            if self.o.global_head:
                modules["global_head"] = head
            mu = torch.tensor(self.o.mu_init, dtype=dtype).requires_grad_()
            self.clients.append(NaiveClient(i, {name: deepcopy(module) for name, module in modules.items()}, mu))
            drawn = ["random_head"] * (self.o.random_head == "per_client")
            drawn += ["extractor", "head"] * (self.o.client_init == "own")
            view = experiment.round.state.clients.view(i, experiment.round.state.server) if drawn else {}
            for name, value in view.items():
                part, _, inside = name.partition(".")
                if part in drawn:
                    self.clients[i].modules[part].state_dict()[inside].copy_(value)
        self.shared = ("extractor", "head") if self.o.global_head else ("extractor",)
        self.server = {name: deepcopy(initial.get_submodule(name)) for name in self.shared}

    def receive(self, client, at_start=False):
        for name in self.shared:
            copy_exchanged(self.server[name], client.modules[f"global_{name}"], self.policy)

    def receive_broadcast(self, client):
        pass

    def upload(self, client, name):
        return super().upload(NaiveClient(client.number, {name: client.modules[f"global_{name}"]}, client.mu), name)

    def train(self, client, number):
        s, m = self.settings, client.modules
        for module in m.values():
            module.train()
        trained = [p for name in m if name != "random_head" for p in m[name].parameters()]
        lr = s.lr * s.lr_decay ** (number - 1)
        groups = [
            {"params": trained, "momentum": s.momentum, "weight_decay": s.weight_decay},
            {"params": [client.mu]},
        ]
        self.optimizer = torch.optim.SGD(groups, lr)
        for epoch in range(s.local_epochs):
            if self.o.schedule == "phased" and (self.o.afa or self.lam):
                self.epoch(client, number, 2 * epoch, self.global_step)
            self.epoch(client, number, 2 * epoch, self.extractor_step)
            if self.o.afa:
                load(m["extractor"], self.mixture(client))
            if self.o.head_phase == "per_epoch" or epoch == s.local_epochs - 1:
                self.epoch(client, number, 2 * epoch + 1, self.head_step)
                if self.o.global_head:
                    self.epoch(client, number, 2 * epoch + 1, self.global_head_step)

    def epoch(self, client, number, epoch, step):
        for x, y, _ in self.data.batches(client.number, number, epoch):
            self.optimizer.zero_grad(set_to_none=True)
            mu = client.mu.item()
            loss = step(client, x, y)
            self.optimizer.step()
            if self.o.mu_clip:
                with torch.no_grad():
                    client.mu.clamp_(0, 1)
            client.losses.append((len(y), float(loss.detach() if torch.is_tensor(loss) else loss)))
            client.mus.append((len(y), mu))

    @staticmethod
    def mixture(client):
        mu = client.mu.detach()
        pair = zip(
            client.modules["extractor"].parameters(), client.modules["global_extractor"].parameters(), strict=True
        )
        return [mu * own.detach() + (1 - mu) * other.detach() for own, other in pair]

    def global_step(self, client, x, y):
        m = client.modules
        loss = F.cross_entropy(m["random_head"](m["global_extractor"](x)), y)
        set_gradients(m["global_extractor"], gradients(loss, m["global_extractor"]))
        return loss

    def extractor_step(self, client, x, y):
        m, o, total, f_g = client.modules, self.o, 0.0, None
        if (o.afa or self.lam) and (o.schedule == "interleaved" or self.lam):
            f_g = m["global_extractor"](x)
        if (o.afa or self.lam) and o.schedule == "interleaved":
            total = F.cross_entropy(m["random_head"](f_g), y)
            set_gradients(m["global_extractor"], gradients(total, m["global_extractor"]))
            total = total.item()
        f_g = None if f_g is None else f_g.detach()
        # At theta_i itself.
        if not o.afa or o.mu_grad != "joint":
            own = m["extractor"] if not o.afa or o.mu_grad == "reuse" else deepcopy(m["extractor"])
            loss = self.objective(client, own(x), f_g, y)
            g = gradients(loss, own)
            set_gradients(m["extractor"], g)
            total += loss.item()
        if not o.afa:
            return total
        mu = client.mu.detach()
        difference = [
            a.detach() - b.detach()
            for a, b in zip(m["extractor"].parameters(), m["global_extractor"].parameters(), strict=True)
        ]
        if o.mu_grad == "reuse":
            g_g = [p.grad for p in m["global_extractor"].parameters()]
            g_mu = [mu * a + (1 - mu) * b for a, b in zip(g, g_g, strict=True)]
            client.mu.grad = sum((a * b).sum() for a, b in zip(difference, g_mu, strict=True))
            return total
        # At the mixture; the client keeps its running statistics.
        bar = deepcopy(m["extractor"])
        load(bar, self.mixture(client))
        loss = self.objective(client, bar(x), f_g, y)
        g = gradients(loss, bar)
        for kept, updated in zip(m["extractor"].buffers(), bar.buffers(), strict=True):
            kept.copy_(updated)
        client.mu.grad = sum((a * b).sum() for a, b in zip(difference, g, strict=True))
        if o.mu_grad == "joint":
            set_gradients(m["extractor"], [mu * each for each in g])
        return total + loss.item()

    def head_step(self, client, x, y, prefix=""):
        m = client.modules
        with torch.no_grad():
            features = m[f"{prefix}extractor"](x)
        head = m[f"{prefix}head"]
        loss = F.cross_entropy(head(features), y)
        set_gradients(head, gradients(loss, head))
        return loss

    def global_head_step(self, client, x, y):
        return self.head_step(client, x, y, "global_")

    def objective(self, client, f_i, f_g, y):
        cross_entropy = F.cross_entropy(client.modules["head"](f_i), y)
        if not self.lam:
            return cross_entropy
        if self.o.kl == "none_softmax":
            transfer = ((f_i - f_g) ** 2).mean()
        else:
            p, q = torch.softmax(f_i, 1), torch.softmax(f_g, 1)
            if self.o.kl == "global_local":
                p, q = q, p
            transfer = F.kl_div(q.log(), p, reduction="batchmean")
        return (1 - self.lam) * cross_entropy + self.lam * transfer

    def predict(self, number, x):
        modules = self.clients[number].modules
        for module in modules.values():
            module.eval()
        with torch.no_grad():
            return modules["head"](modules["extractor"](x))

    def tensors(self):
        found = {
            f"server {name}.{n}": t for name, module in self.server.items() for n, t in module.state_dict().items()
        }
        for client in self.clients:
            for name, module in client.modules.items():
                found.update({f"client {client.number} {name}.{n}": t for n, t in module.state_dict().items()})
            found[f"client {client.number} mixing.mu"] = client.mu.detach()
        return found


def gradients(loss, module):
    return torch.autograd.grad(loss, list(module.parameters()))


def set_gradients(module, values):
    for parameter, value in zip(module.parameters(), values, strict=True):
        parameter.grad = value


def load(module, values):
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(value)
