"""Ditto: FedAvg, and beside it each client's own model, held near the global one.

    w <- FedAvg                                          v_i <- v_i - eta (grad CE(v_i) + lam (v_i - w_g))

w_g is the model the client received; v_i, which it predicts with, comes first in the round and never leaves it. The
pull acts inside the step and is not part of the loss that is reported.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pfl_fast.methods.base import BESIDE, Batch, Part, Phase, Tensors, cross_entropy, personal
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class DittoOptions:
    """Options of Ditto."""

    lam: float = option(1.0, "how near the personal model is kept to the global one; 0: it is trained alone", minimum=0)
    personal_epochs: int = option(1, "epochs of the personal model in a round", minimum=1)


class Ditto(FedAvg):
    """w is shared, v is personal."""

    title = "Ditto"
    paper = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"
    summary = "a personal model beside the shared one, pulled to it"
    family = BESIDE
    reading = "the personal epochs come first, against the global model as received; lam 1 (the paper tunes 0.05 to 2)"
    public_code = "PFLlib: mu is 0 by default, which is Local, and accuracies of both models are reported as one series"
    Options = DittoOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """FedAvg's, and a personal model."""
        own = {"personal_extractor": personal(backbone.extractor), "personal_head": personal(backbone.head)}
        return {**super().parts(backbone), **own}

    def phases(self, round: int) -> list[Phase]:
        """First v, while w is what was received, then w."""
        lam = self.options.lam
        proximal = {"personal_extractor": ("extractor", lam), "personal_head": ("head", lam)}
        return [
            Phase(("personal_extractor", "personal_head"), self.loss, self.options.personal_epochs, proximal=proximal),
            Phase(("extractor", "head"), global_loss, self.context.local_epochs),
        ]

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """By v."""
        logits: Tensor = client.personal_head(client.personal_extractor(batch.x))
        return logits


def global_loss(client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
    """Cross entropy of w."""
    return cross_entropy(client.head(client.extractor(batch.x)), batch.y), {}
