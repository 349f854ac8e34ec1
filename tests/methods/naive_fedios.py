"""Naive FediOS, written from the paper: dense projections, eager losses, a loop over clients."""

from copy import deepcopy

import torch
import torch.nn.functional as F  # noqa: N812

from tests.methods.naive import Federation, NaiveClient


class OSFederation(Federation):
    to_all = False

    def __init__(self, method, experiment):
        self.method, self.data, self.settings = method, experiment.data, experiment.settings
        self.o = experiment.options
        self.policy = experiment.part_table.batch_norm
        initial = experiment.part_table.client
        names = ["extractor", "head"] + ["personal_extractor"] * (self.o.personal_extractor == "own")
        self.trained, self.state = names, {}
        self.server = {name: deepcopy(initial.get_submodule(name)) for name in ("extractor", "head")}
        self.clients, self.matrices, self.buffers, self.inner = [], [], {}, []
        width = initial.extractor[1].out_features
        for i in range(self.data.clients):
            self.clients.append(NaiveClient(i, {name: deepcopy(initial.get_submodule(name)) for name in names}))
            view = experiment.round.state.clients.view(i, experiment.round.state.server)
            bases = {f"client {i} {name}": t for name, t in view.items() if name.startswith("projector.")}
            self.buffers.update(bases)
            positions = (0, i + 1)
            self.matrices.append([self.matrix(basis, positions[j], width) for j, basis in enumerate(bases.values())])

    def matrix(self, basis, position, width):
        """Returns P as a dense matrix."""
        if self.o.projection == "coords":
            return basis.T
        if self.o.projection == "tall":
            p = torch.zeros((self.data.clients + 1) * width, width, dtype=basis.dtype)
            p[position * width : (position + 1) * width] = torch.eye(width)
            return p
        return basis @ basis.T

    def project(self, features, matrix):
        projected = torch.stack([matrix @ f for f in features]) if matrix is not None else features
        return projected.clamp(min=0) if self.o.post_activation == "relu" else projected

    def features(self, client, x):
        m = client.modules
        f_g = m["extractor"](x)
        f_p = m["personal_extractor"](x) if "personal_extractor" in m else f_g
        p_g, p_i = self.matrices[client.number] or (None, None)
        return f_g, f_p, self.project(f_g, p_g), self.project(f_p, p_i)

    def loss(self, client, x, y, seed):
        head, alpha = client.modules["head"], self.o.alpha
        f_g, f_p, p_g, p_p = self.features(client, x)
        if self.o.personal_extractor == "none":
            return F.cross_entropy(head(p_g), y)
        p_f = alpha * p_g + (1 - alpha) * p_p
        loss = F.cross_entropy(head(p_f), y) + F.cross_entropy(head(p_g), y) + F.cross_entropy(head(p_p), y)
        inner = torch.stack([abs(a @ b) for a, b in zip(p_g, p_p, strict=True)]).mean()
        self.inner.append((len(y), inner.item()))
        if self.o.reg_on == "raw":
            inner = torch.stack([abs(a @ b) for a, b in zip(f_g, f_p, strict=True)]).mean()
        return loss + self.o.lam * inner

    def predict(self, number, x):
        client = self.clients[number]
        for module in client.modules.values():
            module.eval()
        with torch.no_grad():
            _, _, p_g, p_p = self.features(client, x)
            alpha = 1 if self.o.personal_extractor == "none" else self.o.alpha
            return client.modules["head"](alpha * p_g + (1 - alpha) * p_p)

    def predict_global(self, x):
        for module in self.server.values():
            module.eval()
        with torch.no_grad():
            p_g = (self.matrices[0] or [None])[0]
            return self.server["head"](self.project(self.server["extractor"](x), p_g))

    def tensors(self):
        return {**super().tensors(), **self.buffers}
