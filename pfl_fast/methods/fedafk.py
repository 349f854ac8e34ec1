"""FedAFK: a personal extractor that is mixed with the global one and learns from its features.

Symbols as in the paper; client i, extractors theta, heads phi; phi_rd is a random head, fixed and common to all:

    f_G = f(x; theta_G,i)                             L_G = CE(phi_rd(f_G), y)
    theta_bar = mu theta_i + (1 - mu) theta_G,i       f_i = f(x; theta_bar)
    L_kt = KL(softmax(f_i) || softmax(f_G))           over features, f_G detached
    L = (1 - lam) CE(phi_i(f_i), y) + lam L_kt

An epoch steps theta_G,i by L_G, and theta_i and mu (kept in [0, 1]) by L, phi_i fixed:

    dL/dtheta_i = mu dL/dtheta_bar                    dL/dmu = <dL/dtheta_bar, theta_i - theta_G,i>

Then theta_i <- mu theta_i + (1 - mu) theta_G,i, and another epoch steps phi_i by CE(phi_i(f(x; theta_i)), y), theta_i
fixed. Client i uploads theta_G,i and keeps theta_i, phi_i and mu; it predicts with phi_i(f(x; theta_i)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

from pfl_fast import ops
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import CHOSEN, Method, RunContext
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.papers import FEDAFK
from pfl_fast.methods.parts import Part, Tensors, Values, client_buffer, personal, shared
from pfl_fast.methods.phases import Batch, PerSampleCache, Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedAFKOptions:
    """Options of FedAFK; the defaults are the paper's method."""

    lam: float = option(
        0.3, "weight of the knowledge transfer; the cross entropy has weight 1 - lam", minimum=0, maximum=1
    )
    client_init: str = option(
        "common", "initial theta_i and phi_i: those of the server's model, or drawn for each client", ["common", "own"]
    )
    global_head: bool = option(
        False,
        "train and average a head on f_G too, which makes theta_G a model of the server; no other parameter changes",
    )
    mu_init: float = option(0.5, "initial weight of the personal extractor in the mixture", minimum=0, maximum=1)
    afa: bool = option(True, "adaptive feature aggregation; off: no mixing, the global extractor is only a teacher")
    kt: bool = option(True, "knowledge transfer; off: lam is 0; with afa off too, every client trains alone")
    mu_grad: str = option(
        "joint",
        "gradients: joint: of theta_i and mu at the mixture; two_point: of theta_i at theta_i, of mu at the mixture; "
        "reuse: of theta_i at theta_i, of mu from the gradients of both extractors",
        ["joint", "two_point", "reuse"],
    )
    mu_clip: bool = option(True, "clip mu to [0, 1] after each step")
    kl: str = option(
        "local_global",
        "knowledge transfer: KL(local || global), KL(global || local), or the mean squared error without softmax",
        ["local_global", "global_local", "none_softmax"],
    )
    schedule: str = option(
        "interleaved",
        "interleaved: train both extractors in the same steps; phased: first an epoch of the global extractor",
        ["interleaved", "phased"],
    )
    head_phase: str = option(
        "per_epoch", "train the head after each epoch of the extractors, or once per round", ["per_epoch", "per_round"]
    )
    random_head: str = option("common", "random head: one for all, or one per client", ["common", "per_client"])


class FedAFK(Method):
    """Shared global extractor with a fixed random head; personal extractor, head and mixing weight."""

    title = "FedAFK"
    paper = (
        "Yin and Mao, Personalized Federated Learning with Adaptive Feature Aggregation and Knowledge Transfer, 2024"
    )
    summary = (
        "personal extractor and head; the extractor is mixed with a shared one by a learned weight and learns from it"
    )
    family = CHOSEN
    reading = (
        "mu_grad has three readings that fit the text, and no measurement decides between them; joint: the loss at the "
        "mixture gives the gradients of the extractor and of mu; features are compared as distributions; mu is clipped "
        "to [0, 1]"
    )
    public_code = "no public code is known"
    Options = FedAFKOptions
    batch_norm = "params_shared_buffers_local"
    own_paper = FEDAFK

    def __init__(self, options: FedAFKOptions, context: RunContext) -> None:
        if options.afa and options.mu_grad == "reuse" and options.schedule == "phased":
            raise ConfigError(
                "fedafk: mu_grad=reuse needs schedule=interleaved, where both extractors have gradients in every step"
            )
        super().__init__(options, context)
        self.lam: float = options.lam if options.kt else 0.0
        self.has_global = options.afa or self.lam > 0
        if options.global_head and not self.has_global:
            raise ConfigError(
                "fedafk: global_head=true needs a global extractor: afa=true, or kt=true with lam above 0"
            )
        self.extractor_parameters = [name for name in context.parameters if name.startswith("extractor.")]

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns both extractors and both heads, with the same initial values, and mu."""
        parts = {"extractor": personal(backbone.extractor), "head": personal(backbone.head)}
        if self.has_global:
            parts["global_extractor"] = shared(backbone.extractor, "extractor")
            parts["random_head"] = client_buffer(backbone.head)
        if self.options.global_head:
            parts["global_head"] = shared(backbone.head, "head")
        if self.options.afa:
            mu = torch.tensor(self.options.mu_init, dtype=torch.float64)  # converted to the dtype of the run
            parts["mixing"] = personal(Values(mu=nn.Parameter(mu)))
        return parts

    def phases(self, round: int) -> list[Phase]:
        """Returns the phases of the extractors, then the heads', whose features are constant during the phase.

        Epochs have fixed numbers: extractors and heads see the same batches whatever ``afa``, ``kt``, ``schedule`` and
        ``head_phase`` are.
        """
        epochs, found = self.context.local_epochs, []
        for epoch in range(epochs):
            found += [replace(phase, first_epoch=2 * epoch) for phase in self.extractor_phases()]
            if self.options.head_phase == "per_epoch" or epoch == epochs - 1:
                found += [replace(phase, first_epoch=2 * epoch + 1) for phase in self.head_phases()]
        return found

    def head_phases(self) -> list[Phase]:
        """Returns the phases of one epoch of each trained head."""
        own = Phase(("head",), self.head_loss, 1, cached={"f_i": PerSampleCache("extractor")})
        if not self.options.global_head:
            return [own]
        cached = {"f_g": PerSampleCache("global_extractor")}
        return [own, Phase(("global_head",), self.global_head_loss, 1, cached=cached)]

    def extractor_phases(self) -> list[Phase]:
        """Returns the phases of one epoch of both extractors and mu."""
        o = self.options
        local = Phase(
            ("extractor", "mixing") if o.afa else ("extractor",),
            self.local_loss,
            1,
            cached={"f_g": PerSampleCache("global_extractor")} if self.lam > 0 else {},
            plain_sgd={"mixing": None} if o.afa else {},
            edit_gradients=self.mu_from_both_gradients if o.afa and o.mu_grad == "reuse" else None,
            after_step=clip_mu if o.afa and o.mu_clip else None,
            after=self.mix_into_personal if o.afa else None,
        )
        if not self.has_global:
            return [local]
        if o.schedule == "phased":
            return [Phase(("global_extractor",), self.global_loss, 1), local]
        return [replace(local, train=("global_extractor", *local.train), loss=self.both_losses, cached={})]

    def both_losses(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``L_G + L``, theta_G and f_G detached in L: each parameter gets the gradient of its own loss."""
        f_g = client.global_extractor(batch.x)
        loss = cross_entropy(client.random_head(f_g), batch.y) + self.local(client, batch, f_g.detach())
        return loss, self.recorded(client)

    def global_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``L_G``."""
        logits = client.random_head(client.global_extractor(batch.x))
        return cross_entropy(logits, batch.y), self.recorded(client)

    def local_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``L``, with the features of a fixed global extractor."""
        return self.local(client, batch, batch.cached.get("f_g")), self.recorded(client)

    def head_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``CE(phi_i(f(x; theta_i)), y)``."""
        return cross_entropy(client.head(batch.cached["f_i"]), batch.y), self.recorded(client)

    def global_head_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns the cross entropy of the averaged head on ``f_G``."""
        return cross_entropy(client.global_head(batch.cached["f_g"]), batch.y), self.recorded(client)

    def local(self, client: Any, batch: Batch, f_g: Tensor | None) -> Tensor:
        """Returns ``L`` at the mixture, or at the point that ``mu_grad`` names."""
        o, extractor = self.options, client.extractor
        if not o.afa or o.mu_grad == "reuse":
            return self.objective(client, extractor(batch.x), f_g, batch.y)
        own = dict(extractor.named_parameters())
        if o.mu_grad == "joint":
            return self.objective(client, self.features_at_mixture(client, own, batch.x), f_g, batch.y)
        # The running statistics kept are those of the mixture; the pass at theta_i updates copies.
        copies = {name: buffer.clone() for name, buffer in extractor.named_buffers()}
        at_own = self.objective(client, functional_call(extractor, copies, (batch.x,)), f_g, batch.y)
        own = {name: parameter.detach() for name, parameter in own.items()}
        return at_own + self.objective(client, self.features_at_mixture(client, own, batch.x), f_g, batch.y)

    @staticmethod
    def features_at_mixture(client: Any, own: Tensors, x: Tensor) -> Tensor:
        """Returns ``f(x; mu theta_i + (1 - mu) theta_G,i)``, theta_G,i detached."""
        others = [parameter.detach() for parameter in client.global_extractor.parameters()]
        theta_bar = ops.mix(list(own.values()), others, 1 - client.mixing.mu)
        f_i: Tensor = functional_call(client.extractor, dict(zip(own, theta_bar, strict=True)), (x,))
        return f_i

    def objective(self, client: Any, f_i: Tensor, f_g: Tensor | None, y: Tensor) -> Tensor:
        """Returns ``(1 - lam) CE(phi_i(f_i), y) + lam L_kt``."""
        loss = cross_entropy(client.head(f_i), y)
        if not self.lam or f_g is None:
            return loss
        return (1 - self.lam) * loss + self.lam * self.transfer(f_i, f_g)

    def transfer(self, f_i: Tensor, f_g: Tensor) -> Tensor:
        """Returns ``L_kt`` of ``[b, K]`` features."""
        if self.options.kl == "none_softmax":
            return F.mse_loss(f_i, f_g)
        p, q = F.log_softmax(f_i, -1), F.log_softmax(f_g, -1)
        if self.options.kl == "global_local":
            p, q = q, p
        return (p.exp() * (p - q)).sum(-1).mean()

    def recorded(self, client: Any) -> Tensors:
        """Returns mu before the step. Every phase records it, so its mean over a round covers all steps."""
        return {"mu": client.mixing.mu.detach().clone()} if self.options.afa else {}

    def mix_into_personal(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """Returns ``mu theta_i + (1 - mu) theta_G,i`` as the new theta_i; running statistics do not change."""
        names = self.extractor_parameters
        own, others = [client[name] for name in names], [client[f"global_{name}"] for name in names]
        return dict(zip(names, ops.mix(own, others, 1 - client["mixing.mu"]), strict=True))

    def mu_from_both_gradients(self, client: Tensors, gradients: Tensors) -> Tensors:
        """Sets mu's gradient to ``<theta_i - theta_G, mu g_i + (1 - mu) g_G>``, g from each extractor's own loss."""
        mu = client["mixing.mu"]
        total = torch.zeros_like(mu)
        for name in self.extractor_parameters:
            if name in gradients:  # parameters that no loss depends on have no gradient
                gradient = mu * gradients[name] + (1 - mu) * gradients[f"global_{name}"]
                total = total + ((client[name] - client[f"global_{name}"]) * gradient).sum()
        return {**gradients, "mixing.mu": total}

    def initial(self, common: Tensors, number: int, seed: Tensor) -> Tensors:
        """Returns a model per client with ``client_init=own``, and a random head with ``random_head=per_client``."""
        return {**self.own_model(common, seed), **self.own_random_head(common, seed)}

    def own_model(self, common: Tensors, seed: Tensor) -> Tensors:
        """Returns theta_i and phi_i of the model built from the client's seed."""
        if self.options.client_init == "common" or self.context.redrawn is None:
            return {}
        modules = {part: self.context.redrawn(part, int(seed)) for part in ("extractor", "head")}
        drawn = {f"{part}.{name}": p for part, module in modules.items() for name, p in module.named_parameters()}
        return {name: value.detach().to(common[name]) for name, value in drawn.items()}

    def own_random_head(self, common: Tensors, seed: Tensor) -> Tensors:
        """Returns a random head, initialized as ``nn.Linear`` is."""
        if not self.has_global or self.options.random_head == "common":
            return {}
        found: Tensors = {}
        weights = [name for name, value in common.items() if name.startswith("random_head.") and value.dim() == 2]
        for layer, weight in enumerate(weights):
            for salt, name in enumerate([weight, weight.removesuffix("weight") + "bias"]):
                if name in common:
                    uniform = ops.philox_uniform(seed ^ (2 * layer + salt), common[name].shape)
                    found[name] = ((2 * uniform - 1) / sqrt(common[weight].shape[1])).to(common[name].dtype)
        return found


def clip_mu(client: Tensors) -> Tensors:
    """Clips mu to [0, 1]."""
    return {"mixing.mu": client["mixing.mu"].clamp(0, 1)}
