"""FedBABU: a shared extractor is trained with a fixed random head; each client fine-tunes after the last round.

    extractor <- sum_i (n_i / n) extractor_i,    with one random head, the same for all clients

After the last round each client fine-tunes its model.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import PARTS, Method
from pfl_fast.methods.parts import Part, personal, shared
from pfl_fast.methods.phases import Phase
from pfl_fast.models import Backbone
from pfl_fast.options import option

FINE_TUNED_PARTS = {"full": ("extractor", "head"), "head": ("head",), "extractor": ("extractor",)}


@dataclass(frozen=True)
class FedBABUOptions:
    """Options of FedBABU."""

    fine_tuning_epochs: int = option(5, "epochs of fine-tuning after the last round", minimum=1)
    tune: str = option("full", "parts to fine-tune: all, the head, or the extractor", list(FINE_TUNED_PARTS))


class FedBABU(Method):
    """Shared extractor; the head is the same for all and fixed until fine-tuning, then personal."""

    title = "FedBABU"
    paper = "Oh, Kim and Yun, FedBABU: Towards Enhanced Representation for Federated Image Classification, ICLR 2022"
    summary = "shared extractor with a fixed random head; each client fine-tunes after the last round"
    family = PARTS
    reading = "all layers are fine-tuned for 5 epochs (the paper: 5 to 10); accuracies before use the random head"
    public_code = "PFLlib: 10 epochs; its best accuracy is printed before the fine-tuning"
    Options = FedBABUOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns a shared extractor, and a head with the same initial values for all clients."""
        extractor = shared(backbone.extractor, "extractor", recipients="all")
        return {"extractor": extractor, "head": personal(backbone.head)}

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase that trains the extractor."""
        return [Phase(("extractor",), self.loss, self.context.local_epochs)]

    def final_phases(self) -> list[Phase]:
        """Returns the fine-tuning phase."""
        return [Phase(FINE_TUNED_PARTS[self.options.tune], self.loss, self.options.fine_tuning_epochs)]
