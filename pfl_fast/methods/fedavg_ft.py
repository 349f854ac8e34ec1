"""FedAvg+FT: FedAvg, and at the end each client fine-tunes the model on its own samples.

    w <- sum_i (n_i / n) w_i,    and after the last round    w_i = SGD(w; client i, some epochs)

The least that a personalised method has to beat; all layers are fine-tuned.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017; the fine-tune
is everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import ADAPTED, Phase
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.options import option


@dataclass(frozen=True)
class FedAvgFTOptions:
    """Options of FedAvg+FT."""

    fine_tuning_epochs: int = option(5, "epochs of each client on its own after the last round", minimum=1)


class FedAvgFT(FedAvg):
    """Everything is shared; a fine-tune of everything at the end."""

    title = "FedAvg+FT"
    summary = "one model for all, fine-tuned by each client after the last round"
    family = ADAPTED
    reading = "no paper fixes the length of the fine-tune: 5 epochs, at the learning rate of a round after the last"
    public_code = ""
    Options = FedAvgFTOptions

    def final_phases(self) -> list[Phase]:
        """Every client on its own."""
        return [Phase(("extractor", "head"), self.loss, self.options.fine_tuning_epochs)]
