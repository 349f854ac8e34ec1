"""Ditto: FedAvg, and a personal model per client with a proximal term towards the global model.

    w <- FedAvg                                          v_i <- v_i - eta (grad CE(v_i) + lam (v_i - w_g))

w_g is the received model. A client predicts with v_i, trains v_i before w, and never uploads it. The proximal term is
added to the gradient and is not part of the reported loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pfl_fast.methods.base import TWO_MODELS
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, personal
from pfl_fast.methods.phases import Batch, Phase
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class DittoOptions:
    """Options of Ditto."""

    lam: float = option(1.0, "weight of the proximal term towards the global model; 0: Local", minimum=0)
    personal_epochs: int = option(1, "epochs of the personal model per round", minimum=1)


class Ditto(FedAvg):
    """w is shared, v is personal."""

    title = "Ditto"
    paper = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"
    summary = "a shared model, and a personal one with a proximal term towards it"
    family = TWO_MODELS
    reading = "the personal model is trained first, towards the received model; lam 1 (the paper tunes 0.05 to 2)"
    public_code = "PFLlib: mu is 0 by default, which is Local; accuracies of both models are reported as one series"
    Options = DittoOptions
    prediction_parts = ("personal_extractor", "personal_head")

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts and a personal model."""
        extra = {"personal_extractor": personal(backbone.extractor), "personal_head": personal(backbone.head)}
        return {**super().parts(backbone), **extra}

    def phases(self, round: int) -> list[Phase]:
        """Returns a phase for v, while w is the received model, then one for w."""
        lam = self.options.lam
        proximal = {"personal_extractor": ("extractor", lam), "personal_head": ("head", lam)}
        return [
            Phase(("personal_extractor", "personal_head"), self.loss, self.options.personal_epochs, proximal=proximal),
            Phase(("extractor", "head"), global_loss, self.context.local_epochs),
        ]


def global_loss(client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
    """Returns the cross entropy of w."""
    return cross_entropy(client.head(client.extractor(batch.x)), batch.y), {}
