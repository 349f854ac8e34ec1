"""Naive FedBN and FedPick, written from the papers: a module per client, plain loops, eager losses, torch's SGD.

The package provides only the order of batches, the sampled clients, the initial weights and the noise.
"""

from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import nn

from pfl_fast.ops import reference
from tests.methods import naive

PFSM = ("f", "h_p", "h_u")
NAMES = {"phi": "extractor", "h_g": "head", "f": "selector.logits", "h_p": "relevant_head", "h_u": "irrelevant_head"}


@dataclass
class NaiveClient:
    """One client: modules by the paper's names."""

    number: int
    modules: dict
    losses: list = field(default_factory=list)  # (number of samples, loss) of every step
    ratios: list = field(default_factory=list)  # (number of samples, share of selected features) of every step


class Federation(naive.Federation):
    """FedBN or FedPick; all modules are trained together."""

    def __init__(self, method, experiment):
        self.data, self.settings, self.o = experiment.data, experiment.settings, experiment.options
        self.policy = experiment.part_table.batch_norm
        self.picks = method == "fedpick" and self.o.pfsm
        initial = deepcopy(experiment.part_table.client)
        modules = {"phi": initial.extractor, "h_g": initial.head}
        self.shared = ["phi", "h_g"]
        if self.picks:
            modules |= {"f": selector(initial), "h_p": initial.relevant_head, "h_u": initial.irrelevant_head}
            self.shared += PFSM if self.o.share_pfsm else ()
        self.clients = [NaiveClient(i, deepcopy(modules)) for i in range(self.data.clients)]
        self.server = {name: deepcopy(modules[name]) for name in self.shared}
        self.trained = list(modules)

    def loss(self, client, x, y, seed):
        m, o = client.modules, self.o
        z_g = m["phi"](x)
        if not self.picks:
            return cross_entropy(m["h_g"](z_g), y)
        logits = m["f"](z_g)
        u = reference.philox_uniform(torch.tensor(seed), z_g.shape).to(z_g.dtype)
        m_s = torch.sigmoid((logits + torch.log(u) - torch.log1p(-u)) / o.tau)
        mask = m_s
        if o.mask == "hard":
            mask = (m_s >= o.threshold).to(m_s.dtype) + m_s - m_s.detach()
        y_g, y_p, y_u = m["h_g"](z_g), m["h_p"](z_g * mask), m["h_u"](z_g * (1 - mask))
        p_u = torch.softmax(y_u, 1)
        negative_entropy = (p_u * torch.log(p_u)).sum(1).mean()
        distillation = divergence(y_p, y_g, o.dis_detach) + divergence(y_g, y_p, o.dis_detach)
        client.ratios.append((len(y), (torch.sigmoid(logits / o.tau) >= o.threshold).double().mean().item()))
        personal = o.lam_lce * cross_entropy(y_p, y) + o.lam_ent * negative_entropy
        return cross_entropy(y_g, y) + personal + o.lam_dis * distillation

    def predict(self, number, x):
        """Returns the logits of a client's model in evaluation mode."""
        m, o = self.clients[number].modules, self.o
        for module in m.values():
            module.eval()
        with torch.no_grad():
            z_g = m["phi"](x)
            y_g = m["h_g"](z_g)
            if not self.picks:
                return y_g
            soft = torch.sigmoid(m["f"](z_g) / o.tau)
            y_p = m["h_p"](z_g * (soft if o.mask == "soft" else (soft >= o.threshold)))
            mean = (torch.softmax(y_g, 1) + torch.softmax(y_p, 1)) / 2
            return {"logits": y_g + y_p, "prob": torch.log(mean), "global": y_g, "personal": y_p}[o.ensemble]

    def tensors(self):
        """Returns all tensors by the names of the package."""
        found = {}
        for name, module in self.server.items():
            found.update({f"server {NAMES[name]}.{n}": t for n, t in module.state_dict().items()})
        for client in self.clients:
            for name, module in client.modules.items():
                found.update({f"client {client.number} {NAMES[name]}.{n}": t for n, t in module.state_dict().items()})
        return found


def selector(initial):
    """Returns ``Linear(d, d/2) - ReLU - Linear(d/2, d)`` with the weights of ``initial``."""
    d = initial.selector.logits[0].in_features
    f = nn.Sequential(nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, d)).to(initial.selector.logits[0].weight.dtype)
    f.load_state_dict(initial.selector.logits.state_dict())
    return f


def cross_entropy(logits, y):
    return -torch.log(torch.softmax(logits, 1))[torch.arange(len(y)), y].mean()


def divergence(first, second, detach):
    """Returns ``KL(p_first || p_second)``, mean over samples; ``detach`` detaches the first distribution."""
    p, q = torch.softmax(first.detach() if detach else first, 1), torch.softmax(second, 1)
    return (p * (torch.log(p) - torch.log(q))).sum(1).mean()
