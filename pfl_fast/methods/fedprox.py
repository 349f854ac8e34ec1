"""FedProx: FedAvg whose clients are held near the model they received.

    L_i(w) = CE(w) + mu / 2 |w - w_g|^2

The term acts as ``mu (w - w_g)`` inside the step and is not part of the loss that is reported.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import Part, Phase, Tensors, round_buffer, zeros_like_parameters
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedProxOptions:
    """Options of FedProx."""

    mu: float = option(0.01, "strength of the pull to the received model; 0 is FedAvg", minimum=0)


class FedProx(FedAvg):
    """Everything is shared; steps are pulled back to where the round started."""

    title = "FedProx"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    summary = "one model for all; clients are pulled to the model they received"
    reading = "a fixed mu of 0.01, as FedPick's paper has it; the same number of epochs for all clients"
    public_code = "PFLlib: mu is 0 by default, which is FedAvg. FedBN's scripts: the norm is not squared"
    Options = FedProxOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """FedAvg's, and where the round started."""
        start = zeros_like_parameters({"extractor": backbone.extractor, "head": backbone.head}, self.context.batch_norm)
        return {**super().parts(backbone), "start": round_buffer(start)}

    def phases(self, round: int) -> list[Phase]:
        """One phase, pulled to the start."""
        proximal = {part: (f"start.{part}", self.options.mu) for part in ("extractor", "head")}
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, proximal=proximal)]

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """``w_g``, for the whole round."""
        return {f"start.{name}": client[name] for name in self.context.exchanged_parameters} if at == "start" else {}
