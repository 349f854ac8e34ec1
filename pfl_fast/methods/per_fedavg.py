"""Per-FedAvg: a common model from which one step on a client's own samples leads far.

    w' = w - alpha grad f(w; B1)              adapt on one half of the batch
    w  <- w - beta grad f(w'; B2)             first order: step by the gradient there, on the other half
    w  <- w - beta (g' - alpha H g')          Hessian-free: H g' = (grad f(w + d g'; B1) - grad f(w - d g'; B1)) / (2 d)

beta is the learning rate. A client is tested after one step of size alpha on one of its training batches.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from pfl_fast.methods.base import ADAPTED, GradientAt, Phase, Tensors
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.options import option

HALVED = 4  # smaller batches serve as both halves: BatchNorm cannot train on a single sample


@dataclass(frozen=True)
class PerFedAvgOptions:
    """Options of Per-FedAvg."""

    alpha: float | None = option(None, "size of the step of adaptation; none: the learning rate", minimum=0)
    hessian: str = option(
        "first-order", "leave out the Hessian, or take it from differences", ["first-order", "hessian-free"]
    )
    delta: float = option(0.001, "how far apart the gradients of the differences are", minimum=1e-12)
    compat: str = option("paper", "pfllib: twice the epochs, as PFLlib has it", ["paper", "pfllib"])


class PerFedAvg(FedAvg):
    """Everything is shared; clients adapt the model before they use it."""

    title = "Per-FedAvg"
    paper = "Fallah et al., Personalized Federated Learning: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020"
    summary = "one model for all, made to be adapted: each client takes a step on its own samples before it predicts"
    family = ADAPTED
    reading = (
        "B1 and B2 are halves of a batch, and batches of less than 4 samples are both; the Hessian is taken on B1; "
        "alpha is the learning rate, as PFLlib has it"
    )
    public_code = "PFLlib: draws twice the batch size and trains twice per round (compat=pfllib doubles the epochs)"
    Options = PerFedAvgOptions

    def phases(self, round: int) -> list[Phase]:
        """One phase along the meta-gradient."""
        epochs = self.context.local_epochs * (2 if self.options.compat == "pfllib" else 1)
        return [Phase(("extractor", "head"), self.loss, epochs, custom_gradient=self.custom_gradient)]

    def custom_gradient(self, gradient_at: GradientAt, w: Tensors, size: int, lr: float) -> Tensors:
        """``grad f(w'; B2)``, and what the Hessian takes away from it."""
        half = (size + 1) // 2
        first, second = (slice(0, half), slice(half, size)) if size >= HALVED else (slice(0, size), slice(0, size))
        alpha = lr if self.options.alpha is None else self.options.alpha
        gradient = gradient_at(moved(w, gradient_at(w, first), -alpha), second)
        if self.options.hessian == "first-order":
            return gradient
        delta = self.options.delta
        ahead, behind = (gradient_at(moved(w, gradient, sign * delta), first, reported=False) for sign in (1, -1))
        return {n: g - alpha * (ahead[n] - behind[n]) / (2 * delta) if n in ahead else g for n, g in gradient.items()}

    def before_test(self, round: int, at: str) -> list[Phase]:
        """One plain step on one batch."""
        sgd = {"momentum": 0.0, "weight_decay": 0.0}
        if self.options.alpha is not None:
            sgd["lr"] = self.options.alpha
        return [Phase(("extractor", "head"), self.loss, 1, sgd=sgd, limit=lambda _: 1)]


def moved(w: Tensors, along: Tensors, size: float) -> Tensors:
    """``w + size * along``; what has no gradient stays."""
    return {name: value + size * along[name] if name in along else value for name, value in w.items()}
