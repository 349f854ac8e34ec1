"""FediOS: two extractors give generic and personal features, projected onto orthogonal subspaces, for one head.

Symbols as in the paper; client i of N, features of width d:

    p_g = P_g f(x; W_g)              generic          P_g = A_0 A_0^T, the same for all
    p_p = P_i f(x; W_p)              personal         P_i = A_i A_i^T, client i's own
    p_f = alpha p_g + (1 - alpha) p_p
    L = CE(H(p_f), y) + CE(H(p_g), y) + CE(H(p_p), y) + lam mean|p_g . p_p|

A_0 .. A_N are blocks of r = floor(d / (N + 1)) columns of an orthonormal basis, so P_i P_j = 0. They are drawn once and
not trained (:class:`pfl_fast.nn.OrthogonalProjector`). Client i trains W_g, W_p and H together and uploads W_g and H.
It predicts with H(p_f); the global model is H(P_g f(x; W_g)).

With exact projections p_g . p_p is always zero and lam has no effect. It has one after a ReLU
(``post_activation=relu``), on features before the projection (``reg_on=raw``), or without projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pfl_fast import ops
from pfl_fast.errors import ConfigError
from pfl_fast.methods import papers
from pfl_fast.methods.base import CHOSEN, Method
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.papers import FEDIOS
from pfl_fast.methods.parts import Part, Tensors, Values, personal, shared
from pfl_fast.methods.phases import Batch, Phase
from pfl_fast.models import Backbone
from pfl_fast.nn import OrthogonalProjector
from pfl_fast.options import option
from pfl_fast.randomness import key, torch_seed


@dataclass(frozen=True)
class FediOSOptions:
    """Options of FediOS; the defaults are the paper's method."""

    alpha: float = option(0.5, "weight of the generic features in p_f", minimum=0, maximum=1)
    lam: float = option(0.1, "weight of the mean absolute inner product of generic and personal features", minimum=0)
    projections: bool = option(True, "project the features; off: two plain extractors")
    personal_extractor: str = option(
        "own",
        "own: W_p; shared: both projections use the features of W_g; none: generic features only",
        ["own", "shared", "none"],
    )
    personal_init: str = option(
        "fresh",
        "initial W_p: fresh: the model built from another seed, whose pretrained weights, if any, are those of W_g; "
        "same: W_g",
        ["fresh", "same"],
    )
    projection: str = option(
        "square",
        "square: A A^T f; coords: A^T f, r features; tall: (N + 1) d features, d for each subspace",
        ["square", "coords", "tall"],
    )
    rank: int | None = option(None, "dimension r of each subspace; none: floor(d / (N + 1))", minimum=1)
    basis: str = option(
        "gaussian",
        "source of the orthonormal basis",
        ["gaussian", "uniform", "identity"],
    )
    remainder: str = option("unused", "use of basis columns beyond (N + 1) r", ["unused", "generic"])
    overflow: str = option(
        "error",
        "if (N + 1) r > d: error; cycle: clients share subspaces; random: each subspace is drawn separately",
        ["error", "cycle", "random"],
    )
    post_activation: str = option("none", "activation after the projections", ["none", "relu"])
    reg_on: str = option("projected", "features in the inner product: projected, or raw", ["projected", "raw"])


class FediOS(Method):
    """Shared generic extractor and head, personal extractor, fixed orthogonal projections."""

    title = "FediOS"
    paper = "Gao et al., FediOS: Decoupling Orthogonal Subspaces for Personalization in Feature-skew FL, 2023"
    summary = "shared and personal extractor, projected onto orthogonal subspaces under one shared head"
    family = CHOSEN
    reading = (
        "projections A A^T of width d, as square matrices cannot satisfy Eq. 6; the inner product is then 0; "
        "post_activation=relu gives the regulariser an effect"
    )
    public_code = "no public code is known"
    Options = FediOSOptions
    own_paper = FEDIOS
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper-20-clients": {"clients": 20, "local_epochs": 5, "train_all": True},
        "regularised": {"post_activation": "relu"},
    }

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the paper's values. All clients train; only the uploads of the sampled ones are averaged."""
        common = {"lr": FEDIOS.lr.get(model, FEDIOS.lr[""]), "momentum": 0.9, "train_all": True}
        lam = {"lam": 0.0} if dataset == "digits5" else {}
        return {**common, **papers.training(cls.own_paper, model, dataset), **lam}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns extractors, projector and head; a new head if the projection changes the width of the features."""
        o = self.options
        parts = {"extractor": shared(backbone.extractor, "extractor")}
        if o.personal_extractor == "own":
            parts["personal_extractor"] = personal(self.personal_start(backbone))
        head, projector = backbone.head, Part(Values(generic=None, personal=None), trained=False, on_server=True)
        if o.projections:
            a_0, a_i = self.bases(backbone.feature_width)
            projector = replace(projector, module=Values(generic=a_0, personal=a_i[0]), client_values={"personal": a_i})
            if o.projection != "square":
                width = a_0.shape[-1] * (backbone.feature_width if o.projection == "tall" else 1)
                with torch_seed(key(self.context.seed, "head")):
                    head = nn.Linear(width, self.context.classes)
        parts["projector"] = projector
        parts["head"] = shared(head, "head")
        return parts

    def personal_start(self, backbone: Backbone) -> nn.Module:
        """Returns the initial W_p, common to all clients."""
        if self.options.personal_init == "same" or self.context.redrawn is None:
            return backbone.extractor
        return self.context.redrawn("extractor", key(self.context.seed, "personal extractor"))

    def notes(self, parts: Mapping[str, Part]) -> list[str]:
        """Returns that W_p starts from pretrained weights, and that ``lam`` has no effect."""
        o, notes = self.options, []
        if "personal_extractor" in parts and o.personal_init == "fresh":
            pair = (parts[name].module.parameters() for name in ("extractor", "personal_extractor"))
            if all(torch.equal(generic, own) for generic, own in zip(*pair, strict=True)):
                notes.append("W_p starts from the same pretrained weights as W_g")
        if o.lam > 0 and o.personal_extractor != "none" and self.inner_product_is_zero(parts["projector"]):
            notes.append(
                f"lam={o.lam:g} has no effect: with exact projections the inner product of generic and personal "
                "features is 0; post_activation=relu gives the regulariser an effect"
            )
        return notes

    def inner_product_is_zero(self, projector: Part) -> bool:
        """Returns whether ``p_g . p_p`` is zero for all features and clients."""
        o, tensors = self.options, dict(projector.module.named_buffers())
        if not o.projections or o.reg_on == "raw" or o.projection == "coords":
            return False
        a_0, a_i = tensors["generic"], projector.client_values["personal"]
        if o.post_activation == "relu":  # ReLU leaves the product 0 only if the subspaces have no coordinate in common
            a_0, a_i = a_0.abs(), a_i.abs()
        return o.projection == "tall" or bool((a_0.mT @ a_i).abs().max() < 1e-5)

    def bases(self, width: int) -> tuple[Tensor, Tensor]:
        """Returns A_0 ``[d, r]`` and A_1 to A_N ``[N, d, r]``; for ``tall``, one-hot positions of the subspaces."""
        o, clients = self.options, self.context.clients
        if o.projection == "tall":
            positions = torch.eye(clients + 1)
            return positions[0], positions[1:]
        seed = key(self.context.seed, "projections")
        try:
            projector = OrthogonalProjector(width, clients, o.rank, o.basis, o.remainder, o.overflow, seed=seed)
        except ValueError as error:
            raise ConfigError(f"fedios: {error}") from None
        if o.projection == "coords" and projector.generic.shape[-1] != projector.rank:
            raise ConfigError("fedios: projection=coords needs remainder=unused, as both parts must have r features")
        return projector.generic, projector.personal

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase that trains all parts together."""
        own = ("personal_extractor",) if self.options.personal_extractor == "own" else ()
        return [Phase(("extractor", *own, "head"), self.loss, self.context.local_epochs)]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns the three cross entropies and the regulariser; records the mean |p_g . p_p|."""
        o = self.options
        if o.personal_extractor == "none":
            return super().loss(client, batch)
        f_g, f_p = self.features(client, batch.x)
        p_g, p_p, p_f, inner = self.project(client, f_g, f_p)
        fused, generic, own = (cross_entropy(client.head(p), batch.y) for p in (p_f, p_g, p_p))
        loss = fused + generic + own
        if o.lam > 0:
            loss = loss + o.lam * (inner if o.reg_on == "projected" else (f_g * f_p).sum(-1)).abs().mean()
        return loss, {"inner_product": inner.detach().abs().mean()}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns ``H(p_f)``."""
        if self.options.personal_extractor == "none":
            p_f = self.project_one(client.extractor(batch.x), client.projector.generic)
        else:
            p_f = self.project(client, *self.features(client, batch.x))[2]
        logits: Tensor = client.head(p_f)
        return logits

    def predict_global(self, server: Any, batch: Batch) -> Tensor | None:
        """Returns ``H(P_g f(x; W_g))``."""
        logits: Tensor = server.head(self.project_one(server.extractor(batch.x), server.projector.generic))
        return logits

    def features(self, client: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ``f(x; W_g)`` and ``f(x; W_p)``, ``[b, d]`` each."""
        f_g = client.extractor(x)
        return f_g, client.personal_extractor(x) if self.options.personal_extractor == "own" else f_g

    def project(self, client: Any, f_g: Tensor, f_p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns ``p_g``, ``p_p``, ``p_f`` and ``[b]`` inner products ``p_g . p_p``."""
        o = self.options
        generic, own = client.projector.generic, client.projector.personal
        if generic is not None and o.projection == "square":
            return ops.orthogonal_project(f_g, f_p, generic, own, o.alpha, o.post_activation == "relu")
        p_g, p_p = self.project_one(f_g, generic), self.project_one(f_p, own)
        return p_g, p_p, o.alpha * p_g + (1 - o.alpha) * p_p, (p_g * p_p).sum(-1)

    def project_one(self, f: Tensor, basis: Tensor | None) -> Tensor:
        """Returns ``P f`` of ``[b, d]`` features f; without a basis, f."""
        if basis is not None and self.options.projection == "tall":
            f = (basis[:, None] * f[:, None, :]).flatten(1)
        elif basis is not None:
            f = f @ basis
            f = f @ basis.mT if self.options.projection == "square" else f
        return torch.relu(f) if self.options.post_activation == "relu" else f
