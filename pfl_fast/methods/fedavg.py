"""FedAvg: one model for all, the average of what clients made of it.

    w <- sum_i (n_i / n) w_i

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from pfl_fast.methods.base import ONE_MODEL, Method, Part, shared
from pfl_fast.models import Backbone


class FedAvg(Method):
    """Everything is shared."""

    title = "FedAvg"
    paper = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    summary = "one model for all: extractor and head are averaged"
    family = ONE_MODEL
    reading = "averages weighted by training samples"
    public_code = (
        "PFLlib: statistics of BatchNorm are not averaged (--batch-norm params_shared_buffers_local does the same)"
    )

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Extractor and head, both shared; every client is tested with the newest model."""
        return {
            "extractor": shared(backbone.extractor, "extractor", recipients="all"),
            "head": shared(backbone.head, "head", recipients="all"),
        }
