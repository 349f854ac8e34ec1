"""pFedMe: the personal model theta of a client is a proximal point of the shared model w.

    theta ~ argmin CE(theta) + lam / 2 |theta - w|^2     k steps on each batch
    w <- w - eta lam (w - theta)                         after each batch
    w_g <- w_g + server_step (sum_i (n_i / n) w_i - w_g)

theta starts each round from the received w. A client predicts with theta.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfl_fast.methods.base import TWO_MODELS
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.parts import Part, Tensors, part_of, personal
from pfl_fast.methods.phases import Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option

PFLLIB_DECAY = 0.001


@dataclass(frozen=True)
class PFedMeOptions:
    """Options of pFedMe."""

    lam: float = option(15.0, "weight of the proximal term of theta towards w", minimum=0)
    k: int = option(5, "steps of theta per batch", minimum=1)
    personal_lr: float = option(0.01, "learning rate of theta", minimum=0)
    server_step: float = option(1.0, "step size of the server towards the average of the clients", minimum=0)
    compat: str = option("paper", "pfllib: weight decay 0.001 for theta, as in PFLlib", ["paper", "pfllib"])


class PFedMe(FedAvg):
    """Shared model w, personal model theta."""

    title = "pFedMe"
    paper = "Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"
    summary = "a personal model with a proximal term towards the shared one, which moves towards the personal ones"
    family = TWO_MODELS
    reading = "momentum and weight decay apply to theta; w copies theta's BatchNorm statistics"
    public_code = (
        "PFLlib: server_step is 0 by default, so the server's model never changes; 0.001 theta is added to the "
        "gradient (compat=pfllib)"
    )
    Options = PFedMeOptions
    prediction_parts = ("personal_extractor", "personal_head")

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns w and theta."""
        theta = {"personal_extractor": personal(backbone.extractor), "personal_head": personal(backbone.head)}
        return {**super().parts(backbone), **theta}

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase: on each batch k steps of theta with the proximal term, then one step of w."""
        o = self.options
        return [
            Phase(
                ("personal_extractor", "personal_head"),
                self.loss,
                self.context.local_epochs,
                sgd={"lr": o.personal_lr},
                proximal={"personal_extractor": ("extractor", o.lam), "personal_head": ("head", o.lam)},
                repeats=o.k,
                edit_gradients=decay if o.compat == "pfllib" else None,
                after_batch=self.step_shared,
            )
        ]

    def on_receive(self, client: Tensors, at: str) -> Tensors:
        """Returns w as the initial theta of the round."""
        return as_theta(client) if at == "start" else {}

    def step_shared(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """Returns ``w - eta lam (w - theta)`` as the new w; its running statistics are theta's."""
        found, rate = {}, progress.lr * self.options.lam
        for name in as_theta(client):
            w, theta = name.removeprefix("personal_"), client[name]
            found[w] = client[w] - rate * (client[w] - theta) if w in self.context.parameters else theta
        return found

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Returns the server's model after a step of size server_step towards the average of the clients."""
        step = self.options.server_step
        average = super().aggregate(server, uploads, sizes)
        return {n: server[n].lerp(v, step) if v.is_floating_point() else v for n, v in average.items()}


def as_theta(client: Tensors) -> Tensors:
    """Returns the values of w, by the names of theta."""
    return {f"personal_{part}.{n}": v for part in ("extractor", "head") for n, v in part_of(client, part).items()}


def decay(client: Tensors, gradients: Tensors) -> Tensors:
    """Returns ``g + 0.001 theta``."""
    return {name: gradient + PFLLIB_DECAY * client[name] for name, gradient in gradients.items()}
