"""FedProto: clients share nothing but the mean features of their classes.

    z = f(x; w_i)                       L = CE + lam * mean over samples of |z - P_y|^2 / K,   0 where P_y is not known
    P_i,c = mean of z over the round's samples of class c
    P_c = sum_i n_i,c P_i,c / sum_i n_i,c

A client predicts the class whose prototype P_c is nearest.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pfl_fast.methods.base import OWN, Batch, Method, Part, Tensors, cross_entropy, frozen, personal, round_buffer
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedProtoOptions:
    """Options of FedProto."""

    lam: float = option(1.0, "weight of the distance between features and prototypes", minimum=0)
    inference: str = option("prototype", "predict by the nearest prototype, or by the head", ["prototype", "head"])
    compat: str = option(
        "paper", "pfllib: clients' prototypes are averaged without their counts, as PFLlib has it", ["paper", "pfllib"]
    )


class FedProto(Method):
    """Models are personal, prototypes are shared."""

    title = "FedProto"
    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    summary = "personal models that only share the mean features of each class"
    family = OWN
    reading = (
        "prototypes are gathered while the client trains, as the authors' code does; the distance is the mean over "
        "features; before a client knows any prototype its head predicts"
    )
    public_code = "PFLlib: prototypes are averaged without counts (compat=pfllib), and come from a pass after training"
    Options = FedProtoOptions

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """The client's own sums go up as the server's prototypes, and come back as means."""
        prototypes = Prototypes(self.context.classes, backbone.feature_width)
        return {
            "extractor": personal(backbone.extractor),
            "head": personal(backbone.head),
            "own": round_buffer(prototypes, upload_to="prototypes"),
            "prototypes": frozen(prototypes, "prototypes"),
        }

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Cross entropy and distance; gathers the features by class."""
        z = client.extractor(batch.x)
        classes = F.one_hot(batch.y, self.context.classes).to(z.dtype)
        client.own.means.add_(classes.T @ z.detach())
        client.own.counts.add_(classes.sum(0))
        known = (client.prototypes.counts > 0).to(z.dtype)[batch.y]
        distance = (known * (z - client.prototypes.means[batch.y]).square().mean(-1)).mean()
        loss = cross_entropy(client.head(z), batch.y) + self.options.lam * distance
        return loss, {"prototype_distance": distance.detach()}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Minus the squared distance to each prototype; a class without one is farther than any that has one."""
        z = client.extractor(batch.x)
        by_head: Tensor = client.head(z)
        if self.options.inference == "head":
            return by_head
        distance = (z[:, None] - client.prototypes.means).square().sum(-1)
        known = (client.prototypes.counts > 0).expand_as(distance)
        farthest = torch.where(known, distance, 0).amax(-1, keepdim=True)
        return torch.where(known.any(-1, keepdim=True), -torch.where(known, distance, farthest + 1), by_head)

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Means over all samples, or over all clients, that have the class; others stay as they were."""
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


class Prototypes(nn.Module):
    """A feature vector for each class, and how many samples it stands for."""

    means: Tensor
    counts: Tensor

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.zeros(classes, width))
        self.register_buffer("counts", torch.zeros(classes))
