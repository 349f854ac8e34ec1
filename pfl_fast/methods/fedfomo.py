"""FedFomo: the next model of a client is a mixture of the models that do best on its validation samples.

    w_j = max(0, (L_i(theta_old) - L_i(theta_j)) / |theta_j - theta_old|),  normalised over the candidates j
    theta <- theta_old + sum_j w_j (theta_j - theta_old)

theta_old is the client's model before local training, theta_j are the trained models, its own among them, and L_i is
its loss on validation samples. The server sums the weights before max(0, .) over rounds, and sends each client the m
models with the largest sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_fast.methods.base import ONE_PER_CLIENT, Method, MixtureInputs
from pfl_fast.methods.parts import Part, Tensors, client_buffer, part_of, zeros_like_parameters
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedFomoOptions:
    """Options of FedFomo."""

    m: int = option(5, "number of models in a client's mixture, its own among them", minimum=1)


class FedFomo(Method):
    """Personal models, each replaced by a mixture of models that reduce its validation loss."""

    title = "FedFomo"
    paper = "Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021"
    summary = (
        "personal models, each replaced by a mixture of the models that do best on the client's validation samples"
    )
    family = ONE_PER_CLIENT
    reading = (
        "validation samples are 20 % of the training samples; the m models with the largest sums are sent, without "
        "epsilon-greedy sampling, ties by client number; models are mixed at the end of the round"
    )
    public_code = "PFLlib: validation losses keep their autograd graph; models may be in training or evaluation mode"
    Options = FedFomoOptions
    on_receive = Method.keep_start

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Holds out a fifth of the training samples for validation."""
        return {**super().defaults(model, dataset), "validation": 0.2}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns theta and theta_old."""
        start = zeros_like_parameters(backbone, self.context.batch_norm)
        mixture_size = min(self.options.m, self.context.clients)
        return {
            "extractor": Part(
                deepcopy(backbone.extractor),
                upload_to="model_extractor",
                mixture_of="model_extractor",
                mixture_size=mixture_size,
            ),
            "head": Part(
                deepcopy(backbone.head), upload_to="model_head", mixture_of="model_head", mixture_size=mixture_size
            ),
            "start": client_buffer(start),
        }

    def server_state(self, server: Tensors) -> Tensors:
        """Returns ``[N, N]`` sums of weights."""
        return {
            "affinity": torch.zeros(self.context.clients, self.context.clients, dtype=next(iter(server.values())).dtype)
        }

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Returns nothing: the models are mixed, not averaged."""
        return {}

    def mixture(self, inputs: MixtureInputs) -> tuple[Tensor, Tensors]:
        """Returns each client's normalised weights; a client without positive weights keeps its own model."""
        affinity, clients = inputs.server["affinity"].clone(), inputs.clients
        old = [part_of(inputs.tensors(client), "start") for client in clients]
        chosen = [self.candidates(affinity[client], clients, row) for row, client in enumerate(clients)]
        own_losses = inputs.losses([(client, old[row]) for row, client in enumerate(clients)])
        pairs = [(row, column) for row, columns in enumerate(chosen) for column in columns]
        losses = inputs.losses([(clients[row], model(inputs.uploads, column)) for row, column in pairs])
        shares = torch.zeros(len(clients), len(clients), dtype=torch.float64)
        for (row, column), loss in zip(pairs, losses, strict=True):
            distance = self.distance(inputs.uploads, column, old[row])
            weight = (own_losses[row] - loss) / distance if distance > 0 else 0.0
            affinity[clients[row], clients[column]] += weight
            shares[row, column] = max(weight, 0.0)
        total = shares.sum(dim=1, keepdim=True)
        shares = torch.where(total > 0, shares / total, torch.eye(len(clients), dtype=torch.float64))
        return shares, {"affinity": affinity}

    def candidates(self, affinity: Tensor, clients: Any, own: int) -> list[int]:
        """Returns the columns of the client's own model and of the m - 1 other models with the largest sums."""
        count, me = self.context.clients, clients[own]
        others = [column for column in range(len(clients)) if column != own]
        others.sort(key=lambda column: (-float(affinity[clients[column]]), (clients[column] - me) % count))
        return [own, *others[: self.options.m - 1]]

    def distance(self, uploads: Tensors, column: int, old: Tensors) -> float:
        """Returns ``|theta_j - theta_old|``."""
        models = {name: uploads[f"model_{name}"][column] for name in old}
        squares = [(models[name] - value.to(models[name])).square().sum() for name, value in old.items()]
        return float(torch.stack(squares).sum().sqrt())


def model(uploads: Tensors, column: int) -> Tensors:
    """Returns one upload, by the names of a client's tensors."""
    return {name.removeprefix("model_"): block[column] for name, block in uploads.items()}
