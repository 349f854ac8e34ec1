"""FedProto: clients share only the mean features of each class.

    z = f(x; w_i)                       L = CE + lam * mean over samples of |z - P_y|^2 / K,   0 where P_y is unknown
    P_i,c = mean of z over the round's samples of class c
    P_c = sum_i n_i,c P_i,c / sum_i n_i,c

A client predicts the class whose prototype P_c is nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_fast.methods.base import ONE_PER_CLIENT, Method
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, Values, frozen, personal, round_buffer
from pfl_fast.methods.phases import Batch
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedProtoOptions:
    """Options of FedProto."""

    lam: float = option(1.0, "weight of the distance between features and prototypes", minimum=0)
    inference: str = option("prototype", "predict with the nearest prototype, or with the head", ["prototype", "head"])
    compat: str = option(
        "paper", "pfllib: average prototypes without weighting by counts, as PFLlib does", ["paper", "pfllib"]
    )


class FedProto(Method):
    """Personal models, shared prototypes."""

    title = "FedProto"
    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    summary = "personal models that share only the mean features of each class"
    family = ONE_PER_CLIENT
    reading = (
        "prototypes are accumulated during training, as in the authors' code; the distance is the mean over features; "
        "the head predicts until the client has received prototypes"
    )
    public_code = "PFLlib: prototypes are averaged without counts (compat=pfllib) and come from a pass after training"
    Options = FedProtoOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns a personal model, sums of features to upload, and the received prototypes."""
        classes, width = self.context.classes, backbone.feature_width
        prototypes = Values(means=torch.zeros(classes, width), counts=torch.zeros(classes))
        return {
            "extractor": personal(backbone.extractor),
            "head": personal(backbone.head),
            "local_prototypes": round_buffer(prototypes, upload_to="prototypes"),
            "prototypes": frozen(prototypes, "prototypes"),
        }

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns cross entropy and distance; adds the features to the sums of their classes."""
        z = client.extractor(batch.x)
        classes = (batch.y[:, None] == torch.arange(self.context.classes, device=batch.y.device)).to(z.dtype)
        client.local_prototypes.means.add_(classes.T @ z.detach())
        client.local_prototypes.counts.add_(classes.sum(0))
        known = (client.prototypes.counts > 0).to(z.dtype)[batch.y]
        distance = (known * (z - client.prototypes.means[batch.y]).square().mean(-1)).mean()
        loss = cross_entropy(client.head(z), batch.y) + self.options.lam * distance
        return loss, {"prototype_distance": distance.detach()}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns minus the squared distance to each prototype; classes without a prototype come last."""
        z = client.extractor(batch.x)
        by_head: Tensor = client.head(z)
        if self.options.inference == "head":
            return by_head
        distance = (z[:, None] - client.prototypes.means).square().sum(-1)
        known = (client.prototypes.counts > 0).expand_as(distance)
        farthest = torch.where(known, distance, 0).amax(-1, keepdim=True)
        return torch.where(known.any(-1, keepdim=True), -torch.where(known, distance, farthest + 1), by_head)

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Returns the means over samples, or clients, of each uploaded class; other classes are unchanged."""
        sums, counts = uploads["prototypes.means"], uploads["prototypes.counts"]
        if self.options.compat == "pfllib":
            sums, held = sums / counts.clamp(min=1)[..., None], (counts > 0).to(counts.dtype).sum(0)
        else:
            held = counts.sum(0)
        seen = held > 0
        means = torch.where(seen[:, None], sums.sum(0) / held.clamp(min=1)[:, None], server["prototypes.means"])
        return {
            "prototypes.means": means,
            "prototypes.counts": torch.where(seen, counts.sum(0), server["prototypes.counts"]),
        }
