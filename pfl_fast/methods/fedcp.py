"""FedCP: a small policy network splits the features of each sample into a global and a personal part.

Symbols as in the paper; client i, features of width K:

    h  = f(x; W_i_fe)                         h0 = f(x; W_fe), frozen
    v_i = sum over classes of W_i_hd's rows   u_i = v_i / |v_i|
    [r; s] = CPN(u_i * h)                     softmax over the two halves: r + s = 1
    out = g(r * h; W_hd) + g(s * h; W_i_hd)
    L = CE(out, y) + lam * MMD(h, h0)

Client i trains W_i_fe, W_i_hd and its CPN; it uploads W_i_fe, the CPN and (W_hd + W_i_hd) / 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pfl_fast import ops
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import CHOSEN, Method, RunContext
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.papers import FEDCP
from pfl_fast.methods.parts import Part, Tensors, Values, client_buffer, frozen, part_of, personal, shared
from pfl_fast.methods.phases import Batch, PerSampleCache, Phase
from pfl_fast.models import Backbone
from pfl_fast.nn import ConditionalPolicy
from pfl_fast.options import option

LAMBDA = {"cnn": 5.0}  # 1 for the paper's other backbones, and for all models that are not in the paper


@dataclass(frozen=True)
class FedCPOptions:
    """Options of FedCP; the defaults are the paper's method."""

    lam: float = option(1.0, "weight of the MMD between features and frozen global features", minimum=0)
    bandwidths: tuple[float, ...] = option((10.0, 15.0, 20.0, 50.0), "bandwidths of the MMD kernels")
    cpn: bool = option(True, "use the policy network; off: both heads get all features (see without_cpn)")
    gfm: bool = option(True, "use the global feature module: the frozen extractor and the MMD")
    gh: bool = option(True, "use the global head; off: only a personal head (needs cpn=false)")
    cpn_input: str = option(
        "hv",
        "input of the policy network: hv: u_i * h; h: the features; v: u_i; random: a fixed random vector",
        ["hv", "h", "v", "random"],
    )
    cpn_depth: int = option(1, "number of linear layers of the policy network", minimum=1)
    cpn_norm: str = option("ln", "normalisation in the policy network: layer, batch or group norm", ["ln", "bn", "gn"])
    cpn_act: str = option("relu", "activation of the policy network", ["relu", "tanh", "sigmoid"])
    policy: str = option("softmax", "softmax (paper) or soft Gumbel-softmax (authors' code)", ["softmax", "gumbel"])
    gumbel_at_eval: bool = option(False, "add Gumbel noise in tests too, as the authors' code does")
    without_cpn: str = option("full", "input of each head with cpn=false: h or h / 2", ["full", "half"])
    random_first: bool = option(
        False, "use a random context until the client first receives a model, as the authors' code does"
    )
    frozen_eval: bool = option(False, "run the frozen extractor in evaluation mode (BatchNorm uses running statistics)")
    extractor_to_all: bool = option(False, "send the extractor to all clients, not only to the selected ones")


class FedCP(Method):
    """Shared extractor and policy network; a global and a personal head."""

    title = "FedCP"
    paper = "Zhang et al., FedCP: Separating Feature Information for Personalized FL via Conditional Policy, KDD 2023"
    summary = "shared extractor and policy network route each sample's features to a global and a personal head"
    family = CHOSEN
    reading = "plain softmax; in round 1, too, the context comes from the head; the term of Eq. 7 is an MMD estimate"
    public_code = (
        "the authors' code and PFLlib: Gumbel noise in training and tests, a random first context, batches in a "
        "fixed order, the last incomplete batch dropped in training and tests (preset official does the same)"
    )
    Options = FedCPOptions
    batch_norm = "params_shared_buffers_local"
    own_paper = FEDCP
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "official": {
            "policy": "gumbel",
            "gumbel_at_eval": True,
            "random_first": True,
            "extractor_to_all": True,
            "shuffle": False,
            "drop_last": True,
            "drop_last_test": True,
            "eval_initial": True,
            "batch_size": 10,
            "local_epochs": 1,
        },
    }

    def __init__(self, options: FedCPOptions, context: RunContext) -> None:
        if options.cpn and not options.gh:
            raise ConfigError("fedcp: gh=false needs cpn=false: the policy network routes features to both heads")
        if not options.bandwidths or min(options.bandwidths) <= 0:
            raise ConfigError(f"fedcp: bandwidths must be one or more positive numbers, got {options.bandwidths}")
        super().__init__(options, context)
        self.uses_mmd = options.gfm and options.lam > 0

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the learning rate and lam of the backbone."""
        return {**super().defaults(model, dataset), "lam": LAMBDA.get(model, 1.0)}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns the parts that the options ask for; by default all of the paper's."""
        o, width = self.options, backbone.feature_width
        recipients = "all" if o.extractor_to_all else "selected"
        parts = {
            "extractor": shared(backbone.extractor, "extractor", recipients),
            "head": personal(backbone.head),
        }
        if self.uses_mmd:
            parts["global_extractor"] = frozen(backbone.extractor, "extractor", recipients, eval_mode=o.frozen_eval)
        if o.gh:  # untrained; `upload` sends the mean of both heads instead
            parts["global_head"] = Part(deepcopy(backbone.head), trained=False, receive_from="head", upload_to="head")
        if o.cpn:
            policy = ConditionalPolicy(width, o.cpn_depth, o.cpn_norm, o.cpn_act, o.policy)
            parts["cpn"] = shared(policy, "cpn")
            parts["context"] = client_buffer(Values(vector=torch.zeros(width)))
        return parts

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase; the features of the frozen extractor are computed once per round."""
        train = ("extractor", "head", "cpn") if self.options.cpn else ("extractor", "head")
        cached = {"h0": PerSampleCache("global_extractor")} if self.uses_mmd else {}
        return [Phase(train, self.loss, self.context.local_epochs, cached)]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``CE + lam * MMD``; records the personal information ratio (PIR), the mean of s."""
        h = client.extractor(batch.x)
        out, recorded = self.logits(client, h, batch.seed)
        loss = cross_entropy(out, batch.y)
        if self.uses_mmd:
            loss = loss + self.options.lam * ops.mmd_rbf(h, batch.cached["h0"], self.options.bandwidths)
        return loss, recorded

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns the logits, without noise unless ``gumbel_at_eval``."""
        seed = batch.seed if self.options.gumbel_at_eval else None
        return self.logits(client, client.extractor(batch.x), seed)[0]

    def logits(self, client: Any, h: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensors]:
        """Returns ``g(r * h; W_hd) + g(s * h; W_i_hd)``, and in training the mean of s."""
        o = self.options
        if not o.cpn:
            part = h if o.without_cpn == "full" else h / 2
            return (client.head(h) if not o.gh else client.global_head(part) + client.head(part)), {}
        seed = seed if o.policy == "gumbel" else None
        scores = client.cpn.scores(h, self.policy_input(h, client.context.vector))
        global_part, personal_part = client.cpn.route(h, scores, seed)
        out = client.global_head(global_part) + client.head(personal_part)
        return out, {"pir": self.personal_share(client, h, scores, seed)} if client.training else {}

    def policy_input(self, h: Tensor, u: Tensor) -> Tensor:
        """Returns the input of the policy network: ``u_i * h``, h or u_i."""
        if self.options.cpn_input == "hv":
            return u * h
        return h if self.options.cpn_input == "h" else u

    @staticmethod
    def personal_share(client: Any, h: Tensor, scores: Tensor, seed: Tensor | None) -> Tensor:
        """Returns the mean of s over samples and features; routing ones yields s itself."""
        with torch.no_grad():
            s: Tensor = client.cpn.route(torch.ones_like(h), scores.detach(), seed)[1]
            return s.mean()

    def initial(self, common: Tensors, number: int, seed: Tensor) -> Tensors:
        """Returns a random context with ``cpn_input=random`` or ``random_first``."""
        o = self.options
        if not o.cpn or not (o.cpn_input == "random" or o.random_first):
            return {}
        vector = ops.philox_uniform(seed, common["context.vector"].shape).to(common["context.vector"].dtype)
        return {"context.vector": vector if o.cpn_input == "random" else F.normalize(vector, dim=0)}

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """Returns ``u_i = v_i / |v_i|``; for a head of several layers, v_i sums the product of their weights."""
        o = self.options
        if not o.cpn or o.cpn_input == "random" or (o.random_first and at == "start"):
            return {}
        weights = [value for value in part_of(client, "head").values() if value.dim() == 2]
        product = reduce(lambda first, second: second @ first, weights)
        return {"context.vector": F.normalize(product.sum(dim=0), dim=0)}

    def upload(self, client: Tensors) -> Tensors:
        """Returns the mean of both heads, to be averaged into the global head."""
        if not self.options.gh:
            return {}
        both = [part_of(client, "global_head"), part_of(client, "head")]
        return {f"head.{name}": (both[0][name] + both[1][name]) / 2 for name in both[0]}
