"""pFedVEM: heads are distributions, and heads with a small variance weigh more in the average.

    q_i = N(m_i, diag sd_i^2),  sd_i = softplus(s_i)              posterior of head i; D numbers
    rho_i^2 = (sum sd_i^2 + |m_i - m_g|^2) / D                    variance of the prior N(m_g, rho_i^2 I)
    head:       min over m_i, s_i of (1/S) sum_k sum_samples CE(z; W_k) + KL(q_i || prior),  W_k ~ q_i,  whole batches
    extractor:  min of (1/S) sum_k CE(z; W_k)
    m_g <- sum_i m_i / rho_i^2 / sum_i 1 / rho_i^2                extractor <- sum_i (n_i / n) extractor_i

A client predicts with m_i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

from pfl_fast import ops
from pfl_fast.methods.base import PARTS, Method, RunContext, averaged
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, Values, frozen, part_of, personal, round_buffer, shared
from pfl_fast.methods.phases import Batch, PerSampleCache, Phase
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class PFedVEMOptions:
    """Options of pFedVEM."""

    draws: int = option(5, "number S of heads drawn per step", minimum=1)
    head_lr: float = option(0.001, "learning rate of the head", minimum=0)
    head_epochs: int = option(20, "steps of the head per round, each on all samples of the client", minimum=1)
    head_momentum: float = option(0.9, "SGD momentum of the head", minimum=0, maximum=0.9999)
    init: str = option("normal", "initial m_g: standard normal, or the backbone's head", ["normal", "backbone"])


class PFedVEM(Method):
    """Shared extractor; heads are personal distributions with a shared prior."""

    title = "pFedVEM"
    paper = "Zhu, Ma and Blaschko, Confidence-Aware Personalized FL via Variational Expectation Maximization, CVPR 2023"
    summary = "shared extractor, heads as distributions; heads with a small variance weigh more in the shared prior"
    family = PARTS
    reading = "as in the authors' code, all clients train in every round and only the selected ones are averaged"
    public_code = "the random numbers of the drawn heads; no other difference is known"
    Options = PFedVEMOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {"head_lr": 0.001, "head_epochs": 20, "lr": 0.01, "local_epochs": 5, "batch_size": 50}
    }

    def __init__(self, options: PFedVEMOptions, context: RunContext) -> None:
        super().__init__(options, context)
        self.head_parameters = [name.removeprefix("head.") for name in context.parameters if name.startswith("head.")]

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the learning rate; all clients train and receive the new extractor."""
        return {**super().defaults(model, dataset), "train_all": True, "broadcast_to_all": True}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns extractor, m_i, s_i, m_g and rho_i^2."""
        mean = deepcopy(backbone.head)
        if self.options.init == "normal":
            for parameter in mean.parameters():
                nn.init.normal_(parameter)
        spread = deepcopy(backbone.head)
        for parameter in spread.parameters():
            nn.init.constant_(parameter, math.log(math.e - 1))  # softplus of it is 1
        return {
            "extractor": shared(backbone.extractor, "extractor", recipients="all"),
            "head": Part(mean, upload_to="head"),
            "spread": personal(spread),
            "prior": frozen(mean, "head", recipients="all"),
            "variance": round_buffer(Values(value=torch.tensor(1.0)), upload_to="variance"),
        }

    def phases(self, round: int) -> list[Phase]:
        """Returns a phase for the head, each step on all samples with cached features, then one for the extractor."""
        o = self.options
        sgd = {"lr": o.head_lr, "momentum": o.head_momentum, "weight_decay": 0.0}  # the prior replaces weight decay
        cached = {"features": PerSampleCache("extractor")}
        return [
            Phase(("head", "spread"), self.head_loss, o.head_epochs, cached, sgd=sgd, whole=True),
            Phase(("extractor",), self.extractor_loss, self.context.local_epochs),
        ]

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """Returns ``rho_i^2``, kept for the round."""
        mean, prior, spread = (part_of(client, part) for part in ("head", "prior", "spread"))
        squares = [F.softplus(spread[n]).square() + (mean[n] - prior[n]).square() for n in self.head_parameters]
        variance = torch.cat([square.flatten() for square in squares]).mean()
        return {"variance.value": variance} if at == "start" else {}

    def head_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns the cross entropy, summed over samples, plus the KL divergence from the prior."""
        loss = self.drawn_loss(client, batch.cached["features"], batch)
        return len(batch.y) * loss + self.divergence(client), {}

    def extractor_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns the mean cross entropy."""
        return self.drawn_loss(client, client.extractor(batch.x), batch), {}

    def drawn_loss(self, client: Any, z: Tensor, batch: Batch) -> Tensor:
        """Returns the mean cross entropy of S drawn heads."""
        mean, spread = dict(client.head.named_parameters()), dict(client.spread.named_parameters())
        noise = {n: self.normal(batch.seed ^ (index + 1), mean[n]) for index, n in enumerate(mean)}
        losses = []
        for k in range(self.options.draws):
            head = {n: mean[n] + F.softplus(spread[n]) * noise[n][k] for n in mean}
            losses.append(cross_entropy(functional_call(client.head, head, (z,)), batch.y))
        return torch.stack(losses).mean()

    def normal(self, seed: Tensor, like: Tensor) -> Tensor:
        """Returns ``[S, *like.shape]`` standard normal numbers."""
        uniform = ops.philox_uniform(seed, (self.options.draws, *like.shape)).to(like.dtype)
        return math.sqrt(2) * torch.erfinv(2 * uniform - 1)

    def divergence(self, client: Any) -> Tensor:
        """Returns ``KL(q_i || N(m_g, rho_i^2 I))``."""
        variance = client.variance.value
        total = torch.zeros_like(variance)
        means, priors, spreads = (dict(part.named_parameters()) for part in (client.head, client.prior, client.spread))
        for name, m in means.items():
            m_g, own = priors[name], F.softplus(spreads[name])
            distance = (own.square() + (m - m_g).square()) / (2 * variance)
            total = total + (variance.log() / 2 - own.log() + distance - 0.5).sum()
        return total

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Averages extractors by numbers of samples, heads by ``1 / rho_i^2``."""
        heads = {name: block for name, block in uploads.items() if name.startswith("head.")}
        precision = 1 / uploads["variance.value"].double()
        return {**super().aggregate(server, uploads, sizes), **averaged(heads, precision / precision.sum())}
