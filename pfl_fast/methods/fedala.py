"""FedALA: before it trains, a client learns, weight by weight, how much of the global model to take.

    theta_hat = theta + (theta_g - theta) * W                    W in [0, 1], for the top layers; below, theta_g
    W <- clip(W - eta_w grad_theta_hat CE * (theta_g - theta))    on a random part of the client's samples

Then theta_hat is trained, uploaded and averaged as in FedAvg. The first time W is learned until the loss settles,
later for one epoch per round. After aggregation a client is tested with the theta_hat that its next round begins with.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023.
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
from pfl_fast.methods.base import (
    BESIDE,
    Batch,
    Method,
    Part,
    PerSampleCache,
    Phase,
    PhaseProgress,
    RunContext,
    Tensors,
    cross_entropy,
    frozen,
    local_tensor_names,
    part_of,
    personal,
)
from pfl_fast.methods.parts import holder_of
from pfl_fast.models import Backbone
from pfl_fast.options import option

SETTLED = 10  # losses that must be alike


@dataclass(frozen=True)
class FedALAOptions:
    """Options of FedALA."""

    layer_idx: int = option(
        1, "layers, counted from the top, that are mixed; those below are the global ones", minimum=1
    )
    rand_percent: float = option(80.0, "percent of a client's batches that W is learned on", minimum=0, maximum=100)
    eta: float = option(1.0, "learning rate of W", minimum=0)
    threshold: float = option(0.1, "the first time, W is learned until the last 10 losses deviate less", minimum=0)
    start_epochs: int = option(20, "and for so many epochs at most", minimum=1)


class FedALA(Method):
    """Clients keep their model; what is averaged of them arrives as a second one, and W says what to take of it."""

    title = "FedALA"
    paper = "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023"
    summary = "FedAvg, but each client learns element by element how much of the global head it takes over"
    family = BESIDE
    reading = (
        "a random part of the batches, drawn anew in each epoch (the paper: of the samples); learning W until the loss "
        "settles is bounded by start_epochs; layers are counted as modules with parameters"
    )
    public_code = (
        "the authors' and PFLlib: layer_idx counts tensors (their 2 is our 1), and W is learned without a bound: on a "
        "loss that is not a number for ever"
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
        """theta, theta_g, and W."""
        weights = {name: backbone.get_parameter(name) for name in self.top}
        return {
            "extractor": Part(deepcopy(backbone.extractor), upload_to="extractor"),
            "head": Part(deepcopy(backbone.head), upload_to="head"),
            "global_extractor": frozen(backbone.extractor, "extractor", recipients="all"),
            "global_head": frozen(backbone.head, "head", recipients="all"),
            "ala": personal(LocalAggregation(weights)),
        }

    def phases(self, round: int) -> list[Phase]:
        """W, unless there is nothing to mix yet; then the model."""
        train = Phase(("extractor", "head"), self.loss, self.context.local_epochs)
        return [train] if round == 1 else [self.adaptation(round), train]

    def before_test(self, round: int, at: str) -> list[Phase]:
        """The model that the next round would begin with."""
        return [self.adaptation(round)] if at == "after_agg" and round > 1 else []

    def adaptation(self, round: int) -> Phase:
        """W; everybody's first time is in round 2, unless somebody may come later."""
        o = self.options
        first_time = round == 2 or not self.context.everyone_joins
        return Phase(
            ("ala",),
            self.mixed_loss,
            o.start_epochs if first_time else 1,
            {"features": PerSampleCache("extractor", features)} if self.in_head else {},
            sgd={"lr": o.eta, "momentum": 0.0, "weight_decay": 0.0},
            limit=lambda batches: max(1, int(o.rand_percent / 100 * batches + 0.5)),
            update_mask=self.still_learning if first_time else None,
            after_step=self.clip,
            after_epoch=self.note,
            after=self.blend,
        )

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """Lower layers are the global ones; W begins to learn anew."""
        if at != "start":
            return {}
        fresh = {"learning": torch.ones_like, "losses": torch.zeros_like, "count": torch.zeros_like}
        found = {f"ala.{name}": like(client[f"ala.{name}"]) for name, like in fresh.items()}
        return {**found, **{name: client[f"global_{name}"] for name in self.lower}}

    def mixed_loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """``CE(theta_hat)``; BatchNorm's statistics are gathered in copies, which are dropped."""
        own, theirs = ([get(client, prefix + name).detach() for name in self.top] for prefix in ("", "global_"))
        weights = [get(client.ala.weights, name) for name in self.top]
        theta_hat = dict(zip(self.top, ops.mix(own, theirs, weights), strict=True))
        if self.in_head:
            z = batch.cached["features"]
        else:
            copies = {name: buffer.clone() for name, buffer in client.extractor.named_buffers()}
            z = functional_call(client.extractor, {**copies, **part_of(theta_hat, "extractor")}, (batch.x,))
        copies = {name: buffer.clone() for name, buffer in client.head.named_buffers()}
        logits = functional_call(client.head, {**copies, **part_of(theta_hat, "head")}, (z,))
        return cross_entropy(logits, batch.y), {}

    def still_learning(self, client: Tensors, seed: Tensor) -> Tensors:
        """Whether W moves."""
        return {f"ala.weights.{name}": client["ala.learning"] for name in self.top}

    def clip(self, client: Tensors) -> Tensors:
        """Keeps W in [0, 1]."""
        return {f"ala.weights.{name}": client[f"ala.weights.{name}"].clamp(0, 1) for name in self.top}

    def note(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """W goes on learning only the first time, and until the losses of the last epochs are alike."""
        losses = torch.cat([client["ala.losses"][1:], progress.loss.to(client["ala.losses"])[None]])
        count = client["ala.count"] + 1
        settled = (count > SETTLED) & (losses.std(correction=0) < self.options.threshold)
        learning = client["ala.learning"] & ~client["ala.started"] & ~settled
        return {"ala.losses": losses, "ala.count": count, "ala.learning": learning}

    def blend(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """The top layers become theta_hat."""
        own, theirs = ([client[prefix + name] for name in self.top] for prefix in ("", "global_"))
        weights = [client[f"ala.weights.{name}"] for name in self.top]
        theta_hat = dict(zip(self.top, ops.mix(own, theirs, weights), strict=True))
        return {**theta_hat, "ala.started": torch.ones_like(client["ala.started"])}


class LocalAggregation(nn.Module):
    """W, whether it was ever learned, and how learning goes this time."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.weights = nn.Module()
        for name, parameter in like.items():
            holder, last = holder_of(self.weights, name)
            holder.register_parameter(last, nn.Parameter(torch.ones_like(parameter)))
        self.register_buffer("started", torch.tensor(False))
        self.register_buffer("learning", torch.tensor(True))
        self.register_buffer("losses", torch.zeros(SETTLED))
        self.register_buffer("count", torch.tensor(0))


def layer_of(name: str) -> str:
    """Returns the module that holds the tensor ``name``.

    >>> layer_of("extractor.fc1.weight")
    'extractor.fc1'
    """
    return name.rpartition(".")[0]


def get(module: Any, name: str) -> Any:
    """A tensor by its name; under vmap, parameters are plain tensors."""
    return reduce(getattr, name.split("."), module)


def features(client: Any, x: Tensor) -> Tensor:
    """What the extractor makes of ``x``; statistics are gathered in copies, which are dropped."""
    copies = {name: buffer.clone() for name, buffer in client.extractor.named_buffers()}
    z: Tensor = functional_call(client.extractor, copies, (x,))
    return z
