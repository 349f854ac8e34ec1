"""FedRep: a shared extractor and personal heads, trained one after the other.

    head_i <- some epochs of SGD, extractor fixed        then extractor_i <- SGD, head fixed
    extractor <- sum_i (n_i / n) extractor_i

head_i stays at client i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pfl_fast.methods.fedper import FedPer
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Tensors
from pfl_fast.methods.phases import Batch, PerSampleCache, Phase
from pfl_fast.options import option


@dataclass(frozen=True)
class FedRepOptions:
    """Options of FedRep."""

    personal_epochs: int = option(4, "epochs of the head per round; the extractor has local_epochs", minimum=1)


class FedRep(FedPer):
    """Shared extractor and personal head; each is trained while the other is fixed."""

    title = "FedRep"
    paper = "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021"
    summary = "shared extractor, personal head: the head is trained first, then the extractor"
    reading = "4 epochs of the head and 1 of the extractor, as in FedPick's paper (FedRep's: 10 or more, and 1)"
    public_code = "PFLlib: 1 epoch of the head"
    Options = FedRepOptions

    def phases(self, round: int) -> list[Phase]:
        """Returns a phase for the head, whose features are computed once, then one for the extractor."""
        cached = {"features": PerSampleCache("extractor")}
        return [
            Phase(("head",), head_loss, self.options.personal_epochs, cached),
            Phase(("extractor",), self.loss, self.context.local_epochs),
        ]


def head_loss(client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
    """Returns the cross entropy on cached features."""
    return cross_entropy(client.head(batch.cached["features"]), batch.y), {}
