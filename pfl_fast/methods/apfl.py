"""APFL: a client predicts with a mixture of a shared and a personal model, whose mixing weight is learned.

    vbar = alpha v + (1 - alpha) w
    w <- w - eta grad CE(w)                       v <- v - eta alpha grad CE(vbar)
    alpha <- clip(alpha - eta <v - w, grad CE(vbar)>, 0, 1)

w is averaged as in FedAvg; v and alpha stay at the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_fast import ops
from pfl_fast.methods.base import TWO_MODELS
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, Values, apply, part_of, personal
from pfl_fast.methods.phases import Batch, Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option

PFLLIB_DECAY = 0.02


@dataclass(frozen=True)
class APFLOptions:
    """Options of APFL."""

    alpha: float = option(0.5, "initial weight of the personal model in the mixture", minimum=0, maximum=1)
    adaptive: bool = option(True, "learn alpha; off: alpha keeps its initial value")
    compat: str = option(
        "paper",
        "pfllib: train v by its own loss, alpha by both gradients, and overwrite v by the mixture after each epoch",
        ["paper", "pfllib"],
    )


class APFL(FedAvg):
    """w is shared, v and alpha are personal."""

    title = "APFL"
    paper = "Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, arXiv:2003.13461"
    summary = "a personal and a shared model; their mixture predicts, with a learned weight"
    family = TWO_MODELS
    reading = "alpha starts at 0.5 and is updated on the same batches as the models; the mixture uses v's BatchNorm"
    public_code = (
        "PFLlib: alpha starts at 1; v is trained by its own loss and overwritten by the mixture after each epoch "
        "(compat=pfllib)"
    )
    Options = APFLOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts, the personal model v, and alpha."""
        modules = {"extractor": backbone.extractor, "head": backbone.head}
        extra = {f"personal_{part}": personal(module) for part, module in modules.items()}
        alpha = torch.tensor(self.options.alpha, dtype=torch.float64)  # converted to the dtype of the run
        return {
            **super().parts(backbone),
            **extra,
            "mixing": personal(Values(alpha=nn.Parameter(alpha))),
        }

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase that trains w, v and alpha together; each term of the loss reaches only its own."""
        train = ("extractor", "head", "personal_extractor", "personal_head")
        as_pfllib = self.options.compat == "pfllib"
        return [
            Phase(
                (*train, "mixing") if self.options.adaptive else train,
                self.loss,
                self.context.local_epochs,
                plain_sgd={"mixing": None} if self.options.adaptive else {},
                edit_gradients=self.alpha_from_both_gradients if as_pfllib and self.options.adaptive else None,
                after_step=clip_alpha if self.options.adaptive else None,
                after_epoch=self.mix_into_personal if as_pfllib else None,
            )
        ]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``CE(w) + CE(vbar)``, w detached in the second term; records alpha."""
        shared_loss = cross_entropy(client.head(client.extractor(batch.x)), batch.y)
        own_loss = cross_entropy(self.predict(client, batch), batch.y)
        return shared_loss + own_loss, {"alpha": client.mixing.alpha.detach().clone()}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns the logits of vbar; with ``compat=pfllib`` those of v."""
        if self.options.compat == "pfllib":
            return apply(client, ("personal_extractor", "personal_head"), batch.x)
        extractor, head = client.personal_extractor, client.personal_head
        own = [*extractor.parameters(), *head.parameters()]
        others = [p.detach() for p in (*client.extractor.parameters(), *client.head.parameters())]
        vbar = dict(zip(self.context.parameters, ops.mix(own, others, 1 - client.mixing.alpha), strict=True))
        z = functional_call(extractor, part_of(vbar, "extractor"), (batch.x,))
        mixed: Tensor = functional_call(head, part_of(vbar, "head"), (z,))
        return mixed

    def alpha_from_both_gradients(self, client: Tensors, gradients: Tensors) -> Tensors:
        """Sets alpha's gradient to ``<v - w, alpha g_v + (1 - alpha) g_w> + 0.02 alpha``."""
        alpha = client["mixing.alpha"]
        total = PFLLIB_DECAY * alpha
        for name in (name for name in self.context.parameters if name in gradients):
            both = alpha * gradients[f"personal_{name}"] + (1 - alpha) * gradients[name]
            total = total + ((client[f"personal_{name}"] - client[name]) * both).sum()
        return {**gradients, "mixing.alpha": total}

    def mix_into_personal(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """Returns ``alpha v + (1 - alpha) w`` as the new v."""
        names = [f"personal_{name}" for name in self.context.parameters]
        own, others = [client[name] for name in names], [client[name] for name in self.context.parameters]
        return dict(zip(names, ops.mix(own, others, 1 - client["mixing.alpha"]), strict=True))


def clip_alpha(client: Tensors) -> Tensors:
    """Clips alpha to [0, 1]."""
    return {"mixing.alpha": client["mixing.alpha"].clamp(0, 1)}
