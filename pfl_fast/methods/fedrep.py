"""FedRep: a common extractor under personal heads, which are trained one after the other.

    head_i <- some epochs of SGD, extractor fixed        then extractor_i <- SGD, head fixed
    extractor <- sum_i (n_i / n) extractor_i

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pfl_fast.methods.base import Batch, PerSampleCache, Phase, Tensors, cross_entropy
from pfl_fast.methods.fedper import FedPer
from pfl_fast.options import option


@dataclass(frozen=True)
class FedRepOptions:
    """Options of FedRep."""

    personal_epochs: int = option(4, "epochs of the head in a round; the extractor has local_epochs", minimum=1)


class FedRep(FedPer):
    """The extractor is shared, the head is personal; each is trained while the other is fixed."""

    title = "FedRep"
    paper = "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021"
    summary = "shared extractor, personal head: the head is trained first, then the extractor"
    reading = "4 epochs of the head and 1 of the extractor, as FedPick's paper has it (FedRep's own: 10 or more, and 1)"
    public_code = "PFLlib: 1 epoch of the head"
    Options = FedRepOptions

    def phases(self, round: int) -> list[Phase]:
        """The head on features that stay the same, then the extractor."""
        cached = {"features": PerSampleCache("extractor", features)}
        return [
            Phase(("head",), head_loss, self.options.personal_epochs, cached),
            Phase(("extractor",), self.loss, self.context.local_epochs),
        ]


def features(client: Any, x: Tensor) -> Tensor:
    """What the extractor makes of ``x``."""
    z: Tensor = client.extractor(x)
    return z


def head_loss(client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
    """Cross entropy on features that were computed before."""
    return cross_entropy(client.head(batch.cached["features"]), batch.y), {}
