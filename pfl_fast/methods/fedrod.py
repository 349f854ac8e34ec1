"""FedRoD: a generic head trained with a class-balanced loss, and a personal head added to it.

    L_G = CE(G(z) + log n_y, y)                       balanced softmax by the client's class counts n_y: extractor, G
    L_P = CE(stop(G(z)) + P(stop(z)), y)              P only

Extractor and G are averaged; a client predicts with ``G(z) + P(z)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pfl_fast.methods.base import PARTS
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, Values, client_buffer, personal
from pfl_fast.methods.phases import Batch, Phase
from pfl_fast.models import Backbone


class FedRoD(FedAvg):
    """Shared extractor and generic head, and a personal head."""

    title = "FedRoD"
    paper = "Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022"
    summary = "shared extractor and generic head, trained with a class-balanced loss; a personal head is added"
    family = PARTS
    reading = "the linear variant; classes without samples are left out of the client's softmax (log 0)"
    public_code = (
        "PFLlib: class counts come from one shuffled pass without the last batch, so a rare class can have count 0 "
        "and the loss can be infinite. FL-bench: P's loss reaches the extractor, and P alone is tested"
    )

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts, a personal head, and the client's class counts."""
        extra = {
            "personal_head": personal(backbone.head),
            "counts": client_buffer(Values(values=torch.ones(self.context.classes))),
        }
        return {**super().parts(backbone), **extra}

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase that trains all parts; each parameter gets the gradient of one of the two losses."""
        return [Phase(("extractor", "head", "personal_head"), self.loss, self.context.local_epochs)]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``L_G + L_P``."""
        z = client.extractor(batch.x)
        generic = client.head(z)
        balanced = cross_entropy(generic + client.counts.values.log(), batch.y)
        own = cross_entropy(generic.detach() + client.personal_head(z.detach()), batch.y)
        return balanced + own, {}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns ``G(z) + P(z)``."""
        z = client.extractor(batch.x)
        logits: Tensor = client.head(z) + client.personal_head(z)
        return logits

    def initial(self, common: Tensors, number: int, seed: Tensor) -> Tensors:
        """Returns the client's number of samples of each class."""
        if self.context.count_classes is None:
            return {}
        return {"counts.values": self.context.count_classes(number).to(common["counts.values"])}
