"""PartialFed-Adaptive: each client learns which groups of tensors to load from the average.

Symbols as in the paper; client c, round t, groups g = 1..k of tensors, including BatchNorm's running statistics:

    loc = W_{t-1}^c,  glo = W_t               both trained by this client
    alpha = softmax(a), a in R^{k x 2}        column 0 local, column 1 global; initially equal, kept by the client
    G ~ Gumbel(0, 1), k x 2
    u = softmax((log alpha + G) / tau_t)      rowwise
    A = onehot(argmax u) - stopgrad(u) + u    one-hot, with the gradient of u
    W_b[g] = A[g, 0] loc[g] + A[g, 1] glo[g]
    l = CE(W_b; batch)

Of f_m + f_s batches, the first f_m update the selected copy of each group and not the other; the rest update a:

    dl/da[g, 1] = (u[g, 0] u[g, 1] / tau_t) <dl/dW_b[g], glo[g] - loc[g]> = -dl/da[g, 0]

After a round W_t^c = alpha[g, 0] loc[g] + alpha[g, 1] glo[g] (soft), fine-tuned for an epoch, or the copy with the
larger alpha (hard). W_t^c is kept and uploaded: W_{t+1} = sum_c (n_c / n) W_t^c. After the last round each client
fine-tunes its W^c.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_fast import ops
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import CHOSEN, Method, RunContext
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.papers import PARTIALFED
from pfl_fast.methods.partialfed_fix import FINETUNE, PAPER, refuse_personal_batch_norm
from pfl_fast.methods.parts import Part, Tensors, Values, apply, part_of, personal
from pfl_fast.methods.phases import Batch, Phase
from pfl_fast.models import GRANULARITIES, Backbone, tensor_groups
from pfl_fast.options import option

ADAM_LR = 0.01  # learning rate of the strategy in AdaShare, whose schedule of the temperature the paper follows


@dataclass(frozen=True)
class PartialFedAdaptiveOptions:
    """Options of PartialFed-Adaptive; the defaults are the paper's best granularity and sampling."""

    granularity: str = option("layer", "size of a group of tensors; stage and block need a ResNet", GRANULARITIES)
    merged: bool = option(
        False, "merge the stem with the first block (granularity=block), or each BatchNorm with its layer (layer)"
    )
    sample: str = option(
        "soft",
        "a client's model after a round: the mean of both copies weighted by alpha, or the copy with the larger alpha",
        ["soft", "hard"],
    )
    soft_finetune: str | None = option(
        None,
        "fine-tune after soft sampling: for one epoch in every round, or only after the last round (finetune_epochs); "
        "none: in every round if sample=soft",
        ["every", "last", None],
    )
    f_m: int = option(1, "consecutive batches that train the model", minimum=1)
    f_s: int = option(1, "consecutive batches that train the strategy; 0: the strategy is fixed", minimum=0)
    tau: float = option(5.0, "temperature of the first round", minimum=1e-6)
    annealing: str = option("exponential", "schedule of the temperature", ["exponential", "linear"])
    tau_decay: float = option(
        0.965, "temperature factor per round, with annealing=exponential", minimum=1e-6, maximum=1
    )
    tau_floor: float = option(0.05, "minimum temperature", minimum=1e-6)
    policy_optimizer: str = option(
        "adam", "optimizer of the strategy; sgd: without momentum and weight decay", ["adam", "sgd"]
    )
    policy_lr: float | None = option(
        None, "learning rate of the strategy; none: 0.01 with adam, that of the model with sgd", minimum=0
    )


class PartialFedAdaptive(Method):
    """A local and a global copy of the model, and for each group the probabilities of the two."""

    title = "PartialFed-Adaptive"
    paper = PAPER
    summary = "all tensors are averaged; each client learns which groups of them to load"
    family = CHOSEN
    reading = (
        "the strategy is trained as logits; the straight-through formula is from the page the paper cites; the "
        "selected copy is trained; a soft sample is fine-tuned for an epoch in every round (soft_finetune=last: only "
        "after the last round). Not stated in the paper and guessed: f_m and f_s 1, the factor 0.965 and floor 0.05 "
        "of the temperature, Adam at 0.01 for the strategy, a final fine-tune of 5 epochs at 0.01; all are options"
    )
    public_code = "no public code is known"
    Options = PartialFedAdaptiveOptions
    own_paper = PARTIALFED
    prediction_parts = ("local",)

    def __init__(self, options: PartialFedAdaptiveOptions, context: RunContext) -> None:
        if options.soft_finetune == "every" and options.sample != "soft":
            raise ConfigError("partialfed-adaptive: soft_finetune=every needs sample=soft")
        if options.merged and options.granularity == "stage":
            raise ConfigError(
                "partialfed-adaptive: merged=true needs granularity=block or layer; stages contain stem and BatchNorm"
            )
        refuse_personal_batch_norm("partialfed-adaptive", context)
        super().__init__(options, context)
        model = context.backbone
        groups = {} if model is None else tensor_groups(model, options.granularity, options.merged)
        self.groups = list(groups)
        self.segments = {name: number for number, names in enumerate(groups.values()) for name in names}

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the settings of the data set, and those of the final fine-tune."""
        return {**super().defaults(model, dataset), **FINETUNE}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns both copies, which start from W_0, and the strategy; clients upload and keep the local copy."""
        return {
            "local": Part(deepcopy(backbone), upload_to="model"),
            "global_": Part(deepcopy(backbone), receive_from="model"),
            "policy": personal(Values(logits=nn.Parameter(torch.zeros(len(self.groups), 2)))),
        }

    def phases(self, round: int) -> list[Phase]:
        """Returns the phase that trains model and strategy in turn and samples W_t^c, and the fine-tune of W_t^c."""
        o, tau = self.options, self.temperature(round)
        search = Phase(
            ("local", "global_", "policy"),
            partial(self.search_loss, tau=tau),
            self.context.local_epochs,
            rotation=(("local", "global_"),) * o.f_m + (("policy",),) * o.f_s,
            adam={"policy": ADAM_LR if o.policy_lr is None else o.policy_lr} if o.policy_optimizer == "adam" else {},
            plain_sgd={"policy": o.policy_lr} if o.policy_optimizer == "sgd" else {},
            update_mask=partial(self.selected_copies, tau=tau),
            after=lambda client, _: self.sample(client),
        )
        if o.soft_finetune == "last" or o.sample == "hard":
            return [search]
        return [search, Phase(("local",), self.loss, 1)]

    def final_phases(self) -> list[Phase]:
        """Returns the fine-tuning phase."""
        epochs = self.context.finetune_epochs
        return [Phase(("local",), self.loss, epochs)] if epochs else []

    @property
    def depends_on_rounds(self) -> bool:
        """True with linear annealing."""
        return bool(self.options.annealing == "linear")

    def temperature(self, round: int) -> float:
        """Returns ``tau_t``, t = round - 1."""
        o, t = self.options, round - 1
        falling = o.tau_decay**t if o.annealing == "exponential" else 1 - t / self.context.rounds
        return float(max(o.tau * falling, o.tau_floor))

    def search_loss(self, client: Any, batch: Batch, tau: float) -> tuple[Tensor, Tensors]:
        """Returns ``CE(W_b; batch)``; records alpha."""
        u = global_share(client.policy.logits, batch.seed, tau)
        return cross_entropy(self.mixture_logits(client, u, batch.x), batch.y), self.recorded(client)

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns the cross entropy of the sampled model, for fine-tuning; records alpha."""
        return cross_entropy(self.predict(client, batch), batch.y), self.recorded(client)

    def recorded(self, client: Any) -> Tensors:
        """Returns the probability of the global copy for each group, and their mean."""
        alpha = torch.softmax(client.policy.logits.detach(), dim=1)[:, 1]
        return {"alpha": alpha.mean(), **{f"alpha.{group}": alpha[g] for g, group in enumerate(self.groups)}}

    def mixture_logits(self, client: Any, u: Tensor, x: Tensor) -> Tensor:
        """Returns the logits of W_b, and updates the running statistics of the selected copies."""
        local, global_ = dict(client.local.named_parameters()), dict(client.global_.named_parameters())
        segments = [self.segments[name] for name in local]
        parameters = ops.mix(list(local.values()), list(global_.values()), u, segments, hard=True)
        buffers = [
            (name, buffer, client.global_.get_buffer(name), u[self.segments[name]] >= 0.5)
            for name, buffer in client.local.named_buffers()
            if name in self.segments
        ]
        used = {name: torch.where(is_global, other, own) for name, own, other, is_global in buffers}
        logits: Tensor = functional_call(client.local, {**dict(zip(local, parameters, strict=True)), **used}, (x,))
        for name, own, other, is_global in buffers:
            own.copy_(torch.where(is_global, own, used[name]))
            other.copy_(torch.where(is_global, used[name], other))
        return logits

    def selected_copies(self, client: Tensors, seed: Tensor, tau: float) -> Tensors:
        """Returns the update mask: the copy of each group that the same draw selects in the loss."""
        is_global = global_share(client["policy.logits"], seed, tau) >= 0.5
        flags = {f"local.{name}": ~is_global[segment] for name, segment in self.segments.items()}
        return {**flags, **{f"global_.{name}": is_global[segment] for name, segment in self.segments.items()}}

    def sample(self, client: Tensors) -> Tensors:
        """Returns ``W_t^c``; integer tensors are taken from the copy with the larger alpha."""
        a, local, global_ = client["policy.logits"], part_of(client, "local"), part_of(client, "global_")
        likelier = a[:, 1] > a[:, 0]
        result = {n: torch.where(likelier[self.segments[n]], global_[n], value) for n, value in local.items()}
        if self.options.sample == "soft":
            names = [name for name, value in local.items() if value.is_floating_point()]
            alpha, segments = torch.softmax(a, dim=1)[:, 1], [self.segments[name] for name in names]
            soft = ops.mix([local[n] for n in names], [global_[n] for n in names], alpha, segments)
            result.update(zip(names, soft, strict=True))
        return {f"local.{name}": value for name, value in result.items()}

    def predict_global(self, server: Any, batch: Batch) -> Tensor:
        """Returns ``[b, C]`` logits of the average."""
        return apply(server, ("model",), batch.x)


def global_share(a: Tensor, seed: Tensor, tau: float) -> Tensor:
    """Returns ``u[:, 1]``, ``[k]``; values from 0.5 on select the global copy.

    The softmax over two columns is the sigmoid of their difference.
    """
    uniform = ops.philox_uniform(seed, a.shape).to(a.dtype)
    noisy = a - torch.log(-torch.log(uniform))
    return torch.sigmoid((noisy[:, 1] - noisy[:, 0]) / tau)
