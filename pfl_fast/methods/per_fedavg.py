"""Per-FedAvg: a shared model trained so that one gradient step adapts it to a client.

    w' = w - alpha grad f(w; B1)              adapt on one half of the batch
    w  <- w - beta grad f(w'; B2)             first order: gradient at w', on the other half
    w  <- w - beta (g' - alpha H g')          Hessian-free: H g' = (grad f(w + d g'; B1) - grad f(w - d g'; B1)) / (2 d)

beta is the learning rate. A client is tested after one step of size alpha on one of its training batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import ADAPTED
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.parts import Tensors
from pfl_fast.methods.phases import GradientAt, Phase
from pfl_fast.options import option

MIN_HALVED = 4  # smaller batches are used as both halves: BatchNorm cannot train on a single sample


@dataclass(frozen=True)
class PerFedAvgOptions:
    """Options of Per-FedAvg."""

    alpha: float | None = option(None, "step size of the adaptation; none: the learning rate", minimum=0)
    hessian: str = option(
        "first-order", "omit the Hessian, or approximate it by finite differences", ["first-order", "hessian-free"]
    )
    delta: float = option(0.001, "step of the finite differences of hessian=hessian-free", minimum=1e-12)
    compat: str = option("paper", "pfllib: train for twice the epochs, as PFLlib does", ["paper", "pfllib"])


class PerFedAvg(FedAvg):
    """Shared extractor and head; clients adapt them before each test."""

    title = "Per-FedAvg"
    paper = (
        "Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning "
        "Approach, NeurIPS 2020"
    )
    summary = "one model for all, trained to be adapted by one step on each client's samples before it predicts"
    family = ADAPTED
    reading = (
        "B1 and B2 are halves of a batch; a batch of less than 4 samples is used as both; the Hessian is computed on "
        "B1; alpha is the learning rate, as in PFLlib"
    )
    public_code = "PFLlib: batches are twice as large, and there are twice as many epochs (compat=pfllib: the latter)"
    Options = PerFedAvgOptions

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase along the meta-gradient."""
        epochs = self.context.local_epochs * (2 if self.options.compat == "pfllib" else 1)
        return [Phase(("extractor", "head"), self.loss, epochs, custom_gradient=self.meta_gradient)]

    def meta_gradient(self, gradient_at: GradientAt, w: Tensors, size: int, lr: float) -> Tensors:
        """Returns ``grad f(w'; B2)``; with ``hessian=hessian-free`` minus the Hessian term."""
        half = (size + 1) // 2
        first, second = (slice(0, half), slice(half, size)) if size >= MIN_HALVED else (slice(0, size), slice(0, size))
        alpha = lr if self.options.alpha is None else self.options.alpha
        gradient = gradient_at(step_along(w, gradient_at(w, first), -alpha), second)
        if self.options.hessian == "first-order":
            return gradient
        delta = self.options.delta
        ahead, behind = (gradient_at(step_along(w, gradient, sign * delta), first, reported=False) for sign in (1, -1))
        return {n: g - alpha * (ahead[n] - behind[n]) / (2 * delta) if n in ahead else g for n, g in gradient.items()}

    def before_test(self, round: int, at: str) -> list[Phase]:
        """Returns one SGD step on one batch."""
        sgd = {"momentum": 0.0, "weight_decay": 0.0}
        if self.options.alpha is not None:
            sgd["lr"] = self.options.alpha
        return [Phase(("extractor", "head"), self.loss, 1, sgd=sgd, limit=lambda _: 1)]


def step_along(w: Tensors, along: Tensors, size: float) -> Tensors:
    """Returns ``w + size * along``; parameters without a gradient are unchanged."""
    return {name: value + size * along[name] if name in along else value for name, value in w.items()}
