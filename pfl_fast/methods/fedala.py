"""FedALA: before local training, a client learns for each weight how much of the global model to take.

    theta_hat = theta + (theta_g - theta) * W                    W in [0, 1], for the top layers; theta_g below
    W <- clip(W - eta_w grad_theta_hat CE * (theta_g - theta))    on a random subset of the client's samples

Then theta_hat is trained, uploaded and averaged as in FedAvg. The first time, W is trained until the loss converges,
later for one epoch per round. After aggregation a client is tested with the theta_hat its next round starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_fast import ops
from pfl_fast.methods.base import TWO_MODELS, Method, RunContext
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, frozen, holder_of, local_tensor_names, part_of, personal
from pfl_fast.methods.phases import Batch, PerSampleCache, Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option

WINDOW = 10  # losses whose standard deviation decides convergence


@dataclass(frozen=True)
class FedALAOptions:
    """Options of FedALA."""

    layer_idx: int = option(1, "number of top layers that are mixed; the layers below are the global ones", minimum=1)
    rand_percent: float = option(80.0, "percentage of a client's batches used to train W", minimum=0, maximum=100)
    eta: float = option(1.0, "learning rate of W", minimum=0)
    threshold: float = option(0.1, "standard deviation of the last 10 losses that ends W's first training", minimum=0)
    start_epochs: int = option(20, "maximum number of epochs of the first training of W", minimum=1)


class FedALA(Method):
    """Clients keep a personal model and receive the average as a second one; W mixes the two."""

    title = "FedALA"
    paper = "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023"
    summary = "FedAvg; each client learns element by element how much of the global head to take"
    family = TWO_MODELS
    reading = (
        "a random subset of the batches, drawn in each epoch (the paper: of the samples); the first training of W "
        "takes at most start_epochs; a layer is a module with parameters"
    )
    public_code = (
        "the authors' and PFLlib: layer_idx counts tensors (their 2 is our 1), and the first training of W has no "
        "limit, so it never ends if the loss is NaN"
    )
    Options = FedALAOptions

    def __init__(self, options: FedALAOptions, context: RunContext) -> None:
        super().__init__(options, context)
        layers = list(dict.fromkeys(layer_of(name) for name in context.parameters))
        top_layers = layers[-options.layer_idx :]
        self.top = [name for name in context.exchanged_parameters if layer_of(name) in top_layers]
        model = context.backbone or nn.Module()
        local = local_tensor_names(model, context.batch_norm)
        self.lower = [name for name in model.state_dict() if name not in local and name not in self.top]
        self.in_head = all(name.startswith("head.") for name in self.top)

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns theta, theta_g and W."""
        weights = {name: backbone.get_parameter(name) for name in self.top}
        return {
            "extractor": Part(deepcopy(backbone.extractor), upload_to="extractor"),
            "head": Part(deepcopy(backbone.head), upload_to="head"),
            "global_extractor": frozen(backbone.extractor, "extractor", recipients="all"),
            "global_head": frozen(backbone.head, "head", recipients="all"),
            "ala": personal(LocalAggregation(weights)),
        }

    def phases(self, round: int) -> list[Phase]:
        """Returns a phase for W, from round 2 on, and a phase for the model."""
        train = Phase(("extractor", "head"), self.loss, self.context.local_epochs)
        return [train] if round == 1 else [self.adaptation(round), train]

    def before_test(self, round: int, at: str) -> list[Phase]:
        """Returns the phase of W, so that clients are tested with the model their next round starts from."""
        return [self.adaptation(round)] if at == "after_agg" and round > 1 else []

    def adaptation(self, round: int) -> Phase:
        """Returns the phase of W. If every client joins every round, the first training of W is in round 2."""
        o = self.options
        first_time = round == 2 or not self.context.everyone_joins
        return Phase(
            ("ala",),
            self.mixed_loss,
            o.start_epochs if first_time else 1,
            {"features": PerSampleCache("extractor", features)} if self.in_head else {},
            sgd={"lr": o.eta, "momentum": 0.0, "weight_decay": 0.0},
            limit=lambda batches: max(1, int(o.rand_percent / 100 * batches + 0.5)),
            update_mask=self.not_converged if first_time else None,
            after_step=self.clip_weights,
            after_epoch=self.check_convergence,
            after=self.mix_top_layers,
        )

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """Returns the global lower layers, and resets the convergence state of W."""
        if at != "start":
            return {}
        reset = {"learning": torch.ones_like, "losses": torch.zeros_like, "count": torch.zeros_like}
        values = {f"ala.{name}": like(client[f"ala.{name}"]) for name, like in reset.items()}
        return {**values, **{name: client[f"global_{name}"] for name in self.lower}}

    def mixed_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``CE(theta_hat)``; the pass updates copies of BatchNorm's running statistics, which are dropped."""
        own, global_ = ([get(client, prefix + name).detach() for name in self.top] for prefix in ("", "global_"))
        weights = [get(client.ala.weights, name) for name in self.top]
        theta_hat = dict(zip(self.top, ops.mix(own, global_, weights), strict=True))
        if self.in_head:
            z = batch.cached["features"]
        else:
            copies = {name: buffer.clone() for name, buffer in client.extractor.named_buffers()}
            z = functional_call(client.extractor, {**copies, **part_of(theta_hat, "extractor")}, (batch.x,))
        copies = {name: buffer.clone() for name, buffer in client.head.named_buffers()}
        logits = functional_call(client.head, {**copies, **part_of(theta_hat, "head")}, (z,))
        return cross_entropy(logits, batch.y), {}

    def not_converged(self, client: Tensors, seed: Tensor) -> Tensors:
        """Returns the update mask: W is frozen after convergence."""
        return {f"ala.weights.{name}": client["ala.learning"] for name in self.top}

    def clip_weights(self, client: Tensors) -> Tensors:
        """Clips W to [0, 1]."""
        return {f"ala.weights.{name}": client[f"ala.weights.{name}"].clamp(0, 1) for name in self.top}

    def check_convergence(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """Appends the loss of the epoch; W keeps training in its first phase only, until the losses converge."""
        losses = torch.cat([client["ala.losses"][1:], progress.loss.to(client["ala.losses"])[None]])
        count = client["ala.count"] + 1
        converged = (count > WINDOW) & (losses.std(correction=0) < self.options.threshold)
        learning = client["ala.learning"] & ~client["ala.started"] & ~converged
        return {"ala.losses": losses, "ala.count": count, "ala.learning": learning}

    def mix_top_layers(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """Returns theta_hat as the new top layers."""
        own, global_ = ([client[prefix + name] for name in self.top] for prefix in ("", "global_"))
        weights = [client[f"ala.weights.{name}"] for name in self.top]
        theta_hat = dict(zip(self.top, ops.mix(own, global_, weights), strict=True))
        return {**theta_hat, "ala.started": torch.ones_like(client["ala.started"])}


class LocalAggregation(nn.Module):
    """Holds W, whether it was trained before, and the convergence state of its current training."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.weights = nn.Module()
        for name, parameter in like.items():
            holder, last = holder_of(self.weights, name)
            holder.register_parameter(last, nn.Parameter(torch.ones_like(parameter)))
        self.register_buffer("started", torch.tensor(False))
        self.register_buffer("learning", torch.tensor(True))
        self.register_buffer("losses", torch.zeros(WINDOW))
        self.register_buffer("count", torch.tensor(0))


def layer_of(name: str) -> str:
    """Returns the module that holds the tensor ``name``.

    >>> layer_of("extractor.fc1.weight")
    'extractor.fc1'
    """
    return name.rpartition(".")[0]


def get(module: Any, name: str) -> Any:
    """Returns a tensor by name. ``get_parameter`` would fail under vmap, where parameters are plain tensors."""
    return reduce(getattr, name.split("."), module)


def features(client: Any, x: Tensor) -> Tensor:
    """Returns the features of ``x``; the pass updates copies of the running statistics, which are dropped."""
    copies = {name: buffer.clone() for name, buffer in client.extractor.named_buffers()}
    z: Tensor = functional_call(client.extractor, copies, (x,))
    return z
