"""FedPick: each client picks, sample by sample, the features that matter to it from those of a common encoder.

Symbols as in the paper; encoder phi, client i's selector f and classifiers h_p, h_u (together its PFSM psi), width d:

    z_g = phi(x)                                l = f(z_g),  f = Linear(d, d/2) - ReLU - Linear(d/2, d)
    m_s = sigmoid((l + G' - G'') / tau)         G', G'' Gumbel noise while training, 0 when testing
    m   = 1[m_s >= threshold]                   with the gradient of m_s (straight through)
    z_p = z_g * m,  z_u = z_g * (1 - m)         relevant and irrelevant features
    y_g = h_g(z_g),  y_p = h_p(z_p),  y_u = h_u(z_u)

    L = L_gce + lam_lce L_lce + lam_ent L_ent + lam_dis L_dis
    L_gce = CE(y_g, y),  L_lce = CE(y_p, y)     L_ent = sum_c p_u log p_u: h_u shall not know the class
    L_dis = KL(p_p || p_g) + KL(p_g || p_p)     p = softmax(y)
    prediction = argmax(y_g + y_p)

phi and h_g are averaged, without BatchNorm; psi and BatchNorm stay at the client. Nothing is averaged that FedBN would
not, so that without psi (``pfsm=false``) it is FedBN.

digits-cnn is cut behind its convolutions (``cut=conv``), d = 8192 for 32x32: the selector alone has 67 million
parameters, each classifier 18 million. ``model_options = cut=conv, head=linear`` makes classifiers of one layer.

Zhu et al., "Take Your Pick: Enabling Effective Personalized Federated Learning within Low-dimensional Feature Space",
2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pfl_fast import ops
from pfl_fast.methods.base import CHOSEN, Batch, Part, Phase, Tensors, personal, reinitialized, shared
from pfl_fast.methods.fedbn import FedBN
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
    threshold: float = option(0.5, "a feature is relevant from this value of m_s on", minimum=1e-6, maximum=1 - 1e-6)
    pfsm: bool = option(True, "selector and personal classifiers; off: FedBN")
    mask: str = option("hard", "each feature goes to one side, or both get their share", ["hard", "soft"])
    share_pfsm: bool = option(False, "selector and personal classifiers are averaged too")
    ensemble: str = option(
        "logits",
        "prediction: sum of y_g and y_p, of their probabilities, y_g alone, y_p alone",
        ["logits", "prob", "global", "personal"],
    )
    dis_detach: bool = option(
        False, "in KL(p || q) of the distillation p only teaches: no gradient reaches it, so that each head follows"
    )
    init_heads_from_global: bool = option(False, "h_p and h_u start as copies of h_g, not from draws of their own")


class FedPick(FedBN):
    """Shared encoder and global classifier; personal selector, and classifiers of what it selects and leaves."""

    title = "FedPick"
    paper = (
        "Zhu et al., Take Your Pick: Effective Personalized FL within Low-dimensional Feature Space, arXiv:2307.13995"
    )
    summary = "shared encoder and head; each client selects features for a personal head"
    family = CHOSEN
    reading = (
        "signs of Eq. 8 and 11, the selector's second layer and line 15 of Algorithm 1 are mended; the two "
        "predictions are added as logits"
    )
    public_code = "no public code of it is known"
    Options = FedPickOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "rounds": 300,
            "join_ratio": 1.0,
            "lr": 0.01,
            "momentum": 0.5,
            "batch_size": 64,
            "local_epochs": 1,
            "eval_at": "after_agg",
        },
    }

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Settings and options by data set; where the digits CNN is cut."""
        cut = {"model_options": ("cut=conv",)} if model == "digits-cnn" else {}
        return {**super().defaults(model, dataset), **OPTIONS.get(dataset, {}), **cut}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """FedBN's, and the PFSM: one initial copy for all clients, its heads drawn independently of h_g."""
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
        """One phase that trains everything together."""
        if not self.options.pfsm:
            return super().phases(round)
        train = ("extractor", "head", "selector", "relevant_head", "irrelevant_head")
        return [Phase(train, self.loss, self.context.local_epochs)]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """The four terms; records the selection ratio, the mean of the mask without noise."""
        o = self.options
        if not o.pfsm:
            return super().loss(client, batch)
        z_g = client.extractor(batch.x)
        logits = client.selector.logits(z_g)
        z_p, z_u = client.selector.split(z_g, logits, batch.seed)
        y_g, y_p, y_u = client.head(z_g), client.relevant_head(z_p), client.irrelevant_head(z_u)
        gce, lce, ent, dis = ops.distill_losses(y_g, y_p, y_u, batch.y)
        if o.dis_detach:
            dis = follow(y_g, y_p) + follow(y_p, y_g)
        loss = gce + o.lam_lce * lce + o.lam_ent * ent + o.lam_dis * dis
        return loss, {"selection_ratio": client.selector.selects(logits.detach()).to(loss.dtype).mean()}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """``y_g + y_p`` or what ``ensemble`` says; the mask has no noise, as the client is in evaluation mode."""
        o = self.options
        z_g = client.extractor(batch.x)
        if not o.pfsm or o.ensemble == "global":
            y_g: Tensor = client.head(z_g)
            return y_g
        y_p: Tensor = client.relevant_head(client.selector(z_g)[0])
        if o.ensemble == "personal":
            return y_p
        y_g = client.head(z_g)
        if o.ensemble == "logits":
            return y_g + y_p
        # As a logarithm, so that its softmax is the mean of the probabilities.
        return torch.logaddexp(F.log_softmax(y_g, -1), F.log_softmax(y_p, -1)) - math.log(2)


def follow(student: Tensor, teacher: Tensor) -> Tensor:
    """``mean_b KL(p_teacher || p_student)`` of ``[b, C]`` logits, without a gradient for the teacher."""
    target = F.log_softmax(teacher.detach(), -1)
    return (target.exp() * (target - F.log_softmax(student, -1))).sum(-1).mean()
