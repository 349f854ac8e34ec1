"""MOON: a client's features are drawn to the global model's, and away from those of its own last model.

    z = f(x; w),  z_g = f(x; w_g),  z_p = f(x; the client's last model)
    L = CE + mu * mean -log( e^{cos(z, z_g) / tau} / (e^{cos(z, z_g) / tau} + e^{cos(z, z_p) / tau}) )

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pfl_fast.methods.base import (
    Batch,
    Part,
    PerSampleCache,
    Phase,
    PhaseProgress,
    Tensors,
    client_buffer,
    cross_entropy,
    frozen,
    part_of,
)
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class MOONOptions:
    """Options of MOON."""

    mu: float = option(1.0, "weight of the contrastive term; 0 is FedAvg", minimum=0)
    tau: float = option(0.5, "temperature of the contrastive term", minimum=1e-9)
    projection: bool = option(False, "two more layers above the extractor, as in the paper's own model")


class MOON(FedAvg):
    """Everything is shared; the last local extractor stays for comparison."""

    title = "MOON"
    paper = "Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021"
    summary = "one model for all; features are drawn to the global model's, away from the client's last ones"
    reading = (
        "mu 1 and no projection, as FediOS's paper has it for all its methods (the paper tunes mu in 0.1 to 10; "
        "preset paper: 5, and the projection, of the features' own width)"
    )
    public_code = "PFLlib: mu is 0 by default, which is FedAvg"
    Options = MOONOptions
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"mu": 5.0, "projection": True}}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """FedAvg's; the extractor as it was received; the extractor after the client's last training."""
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
        """One phase; the other two extractors' features are the same for the whole round."""
        others = ("global_extractor", "previous_extractor") if self.options.mu > 0 else ()
        cached = {part: PerSampleCache(part, partial(features_of, part=part)) for part in others}
        after = remember if self.options.mu > 0 else None
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, cached, after=after)]

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Cross entropy, and the contrastive term, which is recorded too."""
        z = client.extractor(batch.x)
        loss = cross_entropy(client.head(z), batch.y)
        if not self.options.mu:
            return loss, {}
        similar = [F.cosine_similarity(z, batch.cached[part], dim=-1) for part in batch.cached]
        contrast = -F.log_softmax(torch.stack(similar) / self.options.tau, dim=0)[0].mean()
        return loss + self.options.mu * contrast, {"contrast": contrast.detach()}


def features_of(client: Any, x: Tensor, part: str) -> Tensor:
    """What one of the extractors that are not trained makes of ``x``."""
    features: Tensor = client.get_submodule(part)(x)
    return features


def remember(client: Tensors, progress: PhaseProgress) -> Tensors:
    """The trained extractor is the next round's previous one."""
    return {f"previous_extractor.{name}": value for name, value in part_of(client, "extractor").items()}
