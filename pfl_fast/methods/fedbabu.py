"""FedBABU: the body of the network is learned together under a head that nobody trains, until each client fine-tunes.

    extractor <- sum_i (n_i / n) extractor_i,    under one random head, the same for all
    after the last round each client fine-tunes its model

Oh, Kim and Yun, "FedBABU: Towards Enhanced Representation for Federated Image Classification", ICLR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import PARTS, Method, Part, Phase, personal, shared
from pfl_fast.models import Backbone
from pfl_fast.options import option

TUNED = {"full": ("extractor", "head"), "head": ("head",), "extractor": ("extractor",)}


@dataclass(frozen=True)
class FedBABUOptions:
    """Options of FedBABU."""

    fine_tuning_epochs: int = option(5, "epochs of each client on its own after the last round", minimum=1)
    tune: str = option("full", "what is fine-tuned", list(TUNED))


class FedBABU(Method):
    """The extractor is shared; the head is common and fixed until the fine-tune, then personal."""

    title = "FedBABU"
    paper = "Oh, Kim and Yun, FedBABU: Towards Enhanced Representation for Federated Image Classification, ICLR 2022"
    summary = "shared extractor under a fixed random head; each client fine-tunes after the last round"
    family = PARTS
    reading = (
        "everything is fine-tuned for 5 epochs (the paper: 5 to 10); accuracies before that are of the random head"
    )
    public_code = "PFLlib: 10 epochs, and its best accuracy is printed before the fine-tune"
    Options = FedBABUOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """A shared extractor, a head that starts the same for all."""
        extractor = shared(backbone.extractor, "extractor", recipients="all")
        return {"extractor": extractor, "head": personal(backbone.head)}

    def phases(self, round: int) -> list[Phase]:
        """The extractor alone."""
        return [Phase(("extractor",), self.loss, self.context.local_epochs)]

    def final_phases(self) -> list[Phase]:
        """Every client on its own."""
        return [Phase(TUNED[self.options.tune], self.loss, self.options.fine_tuning_epochs)]
