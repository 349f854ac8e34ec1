"""FedAvg: one model for all clients, the average of the locally trained models.

    w <- sum_i (n_i / n) w_i

n_i is the number of training samples of client i, n their sum over the clients whose uploads arrive.
"""

from __future__ import annotations

from pfl_fast.methods.base import ONE_MODEL, Method
from pfl_fast.methods.parts import Part, shared
from pfl_fast.models import Backbone


class FedAvg(Method):
    """Shared extractor and head."""

    title = "FedAvg"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    summary = "one model for all: extractor and head are averaged"
    family = ONE_MODEL
    reading = "averages are weighted by numbers of training samples"
    public_code = (
        "PFLlib: BatchNorm's running statistics are not averaged (the same as --batch-norm params_shared_buffers_local)"
    )

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns a shared extractor and head, sent to all clients: each is tested with the newest model."""
        return {
            "extractor": shared(backbone.extractor, "extractor", recipients="all"),
            "head": shared(backbone.head, "head", recipients="all"),
        }
