"""FedPick: each client selects, for each sample, the relevant features of a shared encoder.

Symbols as in the paper; encoder phi, client i's selector f and classifiers h_p, h_u (together its PFSM psi), width d:

    z_g = phi(x)                                l = f(z_g),  f = Linear(d, d/2) - ReLU - Linear(d/2, d)
    m_s = sigmoid((l + G' - G'') / tau)         G', G'' Gumbel noise while training, 0 when testing
    m   = 1[m_s >= threshold]                   with the gradient of m_s (straight through)
    z_p = z_g * m,  z_u = z_g * (1 - m)         relevant and irrelevant features
    y_g = h_g(z_g),  y_p = h_p(z_p),  y_u = h_u(z_u)

    L = L_gce + lam_lce L_lce + lam_ent L_ent + lam_dis L_dis
    L_gce = CE(y_g, y),  L_lce = CE(y_p, y)     L_ent = sum_c p_u log p_u, so that z_u does not predict y
    L_dis = KL(p_p || p_g) + KL(p_g || p_p)     p = softmax(y)
    prediction = argmax(y_g + y_p)

phi and h_g are averaged, except for BatchNorm; psi and BatchNorm stay at the client. Without psi (``pfsm=false``),
FedPick is FedBN.

digits-cnn is cut behind its convolutions (``cut=conv``), d = 8192 for 32x32: the selector alone has 67 million
parameters, each classifier 18 million. ``model_options = cut=conv, head=linear`` builds classifiers of one layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pfl_fast import ops
from pfl_fast.methods.base import CHOSEN
from pfl_fast.methods.fedbn import FedBN
from pfl_fast.methods.papers import FEDPICK
from pfl_fast.methods.parts import Part, Tensors, personal, reinitialized, shared
from pfl_fast.methods.phases import Batch, Phase
from pfl_fast.models import Backbone
from pfl_fast.nn import FeatureSelector
from pfl_fast.options import option

OPTIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "digits5": {"tau": 10.0, "lam_lce": 10.0, "lam_ent": 0.001, "lam_dis": 10.0},
        "office-caltech10": {"tau": 1.0, "lam_lce": 1.0, "lam_ent": 0.001, "lam_dis": 1.0},
        "domainnet": {"tau": 1.0, "lam_lce": 1.0, "lam_ent": 0.001, "lam_dis": 1.0},
    }
)


@dataclass(frozen=True)
class FedPickOptions:
    """Options of FedPick; the defaults are the paper's method, with its numbers for Office-Caltech-10 and DomainNet."""

    tau: float = option(1.0, "temperature of the mask in training", minimum=1e-30, maximum=1e30)
    lam_lce: float = option(1.0, "weight of the cross entropy of the relevant features", minimum=0)
    lam_ent: float = option(0.001, "weight of the negative entropy of the irrelevant features", minimum=0)
    lam_dis: float = option(1.0, "weight of the distillation between y_g and y_p", minimum=0)
    threshold: float = option(0.5, "minimum m_s of a relevant feature", minimum=1e-6, maximum=1 - 1e-6)
    pfsm: bool = option(True, "use the selector and personal classifiers; off: FedBN")
    mask: str = option("hard", "hard: a feature is relevant or not; soft: m_s is the mask", ["hard", "soft"])
    share_pfsm: bool = option(False, "average the selector and personal classifiers too")
    ensemble: str = option(
        "logits",
        "prediction: sum of y_g and y_p, mean of their probabilities, y_g, or y_p",
        ["logits", "prob", "global", "personal"],
    )
    dis_detach: bool = option(False, "detach p in KL(p || q) of the distillation: p is a teacher without gradient")
    init_heads_from_global: bool = option(False, "initialize h_p and h_u as copies of h_g, not separately")


class FedPick(FedBN):
    """Shared encoder and classifier; personal selector, with classifiers of relevant and irrelevant features."""

    title = "FedPick"
    paper = (
        "Zhu et al., Take Your Pick: Enabling Effective Personalized Federated Learning within Low-dimensional Feature "
        "Space, arXiv:2307.13995"
    )
    summary = "shared encoder and head; each client selects features for a personal head"
    family = CHOSEN
    reading = (
        "the signs of Eq. 8 and 11, the selector's second layer and line 15 of Algorithm 1 are corrected; the two "
        "predictions are added as logits"
    )
    public_code = "no public code is known"
    Options = FedPickOptions
    own_paper = FEDPICK

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns settings and options by data set; digits-cnn is cut after its convolutions."""
        cut = {"model_options": ("cut=conv",)} if model == "digits-cnn" else {}
        return {**super().defaults(model, dataset), **OPTIONS.get(dataset, {}), **cut}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedBN's parts and the PFSM, with the same initial values for all clients."""
        o, parts = self.options, super().parts(backbone)
        if not o.pfsm:
            return parts
        modules = {
            "selector": FeatureSelector(backbone.feature_width, o.tau, o.threshold, hard=o.mask == "hard"),
            "relevant_head": backbone.head if o.init_heads_from_global else reinitialized(backbone.head),
            "irrelevant_head": backbone.head if o.init_heads_from_global else reinitialized(backbone.head),
        }
        for name, module in modules.items():
            parts[name] = shared(module, name, recipients="all") if o.share_pfsm else personal(module)
        return parts

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase that trains all parts together."""
        if not self.options.pfsm:
            return super().phases(round)
        train = ("extractor", "head", "selector", "relevant_head", "irrelevant_head")
        return [Phase(train, self.loss, self.context.local_epochs)]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns L; records the selection ratio, the mean of the mask without noise."""
        o = self.options
        if not o.pfsm:
            return super().loss(client, batch)
        z_g = client.extractor(batch.x)
        logits = client.selector.logits(z_g)
        z_p, z_u = client.selector.split(z_g, logits, batch.seed)
        y_g, y_p, y_u = client.head(z_g), client.relevant_head(z_p), client.irrelevant_head(z_u)
        gce, lce, ent, dis = ops.distill_losses(y_g, y_p, y_u, batch.y)
        if o.dis_detach:
            dis = distillation(y_g, y_p) + distillation(y_p, y_g)
        loss = gce + o.lam_lce * lce + o.lam_ent * ent + o.lam_dis * dis
        return loss, {"selection_ratio": client.selector.selects(logits.detach()).to(loss.dtype).mean()}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns ``y_g + y_p``, or the logits ``ensemble`` names; the mask has no noise in evaluation mode."""
        o = self.options
        z_g = client.extractor(batch.x)
        if not o.pfsm or o.ensemble == "global":
            y_g: Tensor = client.head(z_g)
            return y_g
        y_p: Tensor = client.relevant_head(client.selector(z_g, batch.seed)[0])
        if o.ensemble == "personal":
            return y_p
        y_g = client.head(z_g)
        if o.ensemble == "logits":
            return y_g + y_p
        # Log probabilities, whose softmax is the mean of the two probabilities.
        return torch.logaddexp(F.log_softmax(y_g, -1), F.log_softmax(y_p, -1)) - math.log(2)


def distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Returns ``mean_b KL(p_teacher || p_student)`` of ``[b, C]`` logits, the teacher detached."""
    target = F.log_softmax(teacher.detach(), -1)
    return (target.exp() * (target - F.log_softmax(student, -1))).sum(-1).mean()
