"""MOON: a contrastive term pulls features towards the global model's and away from the client's previous model's.

    z = f(x; w),  z_g = f(x; w_g),  z_p = f(x; the client's previous model)
    L = CE + mu * mean -log( e^{cos(z, z_g) / tau} / (e^{cos(z, z_g) / tau} + e^{cos(z, z_p) / tau}) )

w is averaged as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, client_buffer, frozen, part_of
from pfl_fast.methods.phases import Batch, PerSampleCache, Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class MOONOptions:
    """Options of MOON."""

    mu: float = option(1.0, "weight of the contrastive term; 0: FedAvg", minimum=0)
    tau: float = option(0.5, "temperature of the contrastive term", minimum=1e-9)
    projection: bool = option(False, "add a projection of two layers to the extractor, as in the paper's model")


class MOON(FedAvg):
    """Shared extractor and head; each client keeps its previous extractor."""

    title = "MOON"
    paper = "Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021"
    summary = "one model for all; a contrastive term between the global and the client's previous features"
    reading = (
        "mu 1 and no projection, as in FediOS's paper (MOON's paper tunes mu from 0.1 to 10; preset paper: mu 5 and a "
        "projection of the features' width)"
    )
    public_code = "PFLlib: mu is 0 by default, which is FedAvg"
    Options = MOONOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"mu": 5.0, "projection": True}}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts, the received extractor, and the extractor after the client's last training."""
        extractor = backbone.extractor
        if self.options.projection:
            width = backbone.feature_width
            layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            extractor = nn.Sequential(backbone.extractor, *layers)
        parts = super().parts(Backbone(extractor, backbone.head, backbone.feature_width))
        if self.options.mu > 0:
            parts["global_extractor"] = frozen(extractor, "extractor", recipients="all")
            parts["previous_extractor"] = client_buffer(extractor)
        return parts

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase; the features of the two untrained extractors are computed once per round."""
        others = ("global_extractor", "previous_extractor") if self.options.mu > 0 else ()
        cached = {part: PerSampleCache(part) for part in others}
        after = save_extractor if self.options.mu > 0 else None
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, cached, after=after)]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns the cross entropy and the contrastive term; records the latter."""
        z = client.extractor(batch.x)
        loss = cross_entropy(client.head(z), batch.y)
        if not self.options.mu:
            return loss, {}
        similar = [F.cosine_similarity(z, batch.cached[part], dim=-1) for part in batch.cached]
        contrast = -F.log_softmax(torch.stack(similar) / self.options.tau, dim=0)[0].mean()
        return loss + self.options.mu * contrast, {"contrast": contrast.detach()}


def save_extractor(client: Tensors, progress: PhaseProgress) -> Tensors:
    """Returns the trained extractor as the previous extractor of the next round."""
    return {f"previous_extractor.{name}": value for name, value in part_of(client, "extractor").items()}
