"""FedProx: FedAvg with a proximal term towards the received model.

    L_i(w) = CE(w) + mu / 2 |w - w_g|^2

The term is added to the gradient as ``mu (w - w_g)`` and is not part of the reported loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import Method
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.parts import Part, round_buffer, zeros_like_parameters
from pfl_fast.methods.phases import Phase
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedProxOptions:
    """Options of FedProx."""

    mu: float = option(0.01, "weight of the proximal term towards the received model; 0: FedAvg", minimum=0)


class FedProx(FedAvg):
    """Shared extractor and head, with a proximal term towards their values at the start of the round."""

    title = "FedProx"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    summary = "one model for all; a proximal term towards the received model"
    reading = "a fixed mu of 0.01, as in FedPick's paper; the same number of epochs for all clients"
    public_code = "PFLlib: mu is 0 by default, which is FedAvg. FedBN's scripts: the norm is not squared"
    Options = FedProxOptions
    on_receive = Method.keep_start

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts and w_g."""
        start = zeros_like_parameters(backbone, self.context.batch_norm)
        return {**super().parts(backbone), "start": round_buffer(start)}

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase with the proximal term."""
        proximal = {part: (f"start.{part}", self.options.mu) for part in ("extractor", "head")}
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, proximal=proximal)]
