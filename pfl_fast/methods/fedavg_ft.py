"""FedAvg+FT: FedAvg; after the last round each client fine-tunes the model on its own samples.

    w <- sum_i (n_i / n) w_i,    and after the last round    w_i = SGD(w; client i, some epochs)

All layers are fine-tuned, as is common practice. The simplest baseline of personalised methods.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import ADAPTED
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.phases import Phase
from pfl_fast.options import option


@dataclass(frozen=True)
class FedAvgFTOptions:
    """Options of FedAvg+FT."""

    fine_tuning_epochs: int = option(5, "epochs of fine-tuning after the last round", minimum=1)


class FedAvgFT(FedAvg):
    """Shared extractor and head; both are fine-tuned after the last round."""

    title = "FedAvg+FT"
    summary = "one model for all, fine-tuned by each client after the last round"
    family = ADAPTED
    reading = "no paper fixes the length of the fine-tuning: 5 epochs, at the learning rate of the round after the last"
    public_code = ""
    Options = FedAvgFTOptions

    def final_phases(self) -> list[Phase]:
        """Returns the fine-tuning phase."""
        return [Phase(("extractor", "head"), self.loss, self.options.fine_tuning_epochs)]
