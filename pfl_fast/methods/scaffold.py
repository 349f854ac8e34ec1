"""SCAFFOLD: control variates correct the gradients of each client towards the global gradient.

    y <- y - eta (g_i(y) - c_i + c)                     K steps, from y = x
    c_i+ = c_i - c + (x - y) / (K eta)
    x <- x + eta_g mean_S (y_i - x)                     c <- c + (1 / N) sum_S (c_i+ - c_i)

c_i stays at client i, which uploads y_i and c_i+ - c_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_fast.methods.base import Method, averaged
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.parts import Part, Tensors, client_buffer, frozen, part_of, round_buffer, zeros_like_parameters
from pfl_fast.methods.phases import Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class ScaffoldOptions:
    """Options of SCAFFOLD."""

    server_lr: float = option(1.0, "server learning rate eta_g: step towards the mean of the clients", minimum=0)


class Scaffold(FedAvg):
    """Shared extractor and head; each client has a control variate c_i, the server c."""

    title = "SCAFFOLD"
    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020"
    summary = "one model for all; control variates correct client drift"
    reading = (
        "option II of the paper's two updates of c_i; means over clients are not weighted by samples, as in the paper; "
        "gradients are corrected before weight decay and momentum"
    )
    public_code = (
        "PFLlib: K is the number of steps of a full round, also for clients with fewer, and sums are divided by the "
        "planned number of clients when some are lost"
    )
    Options = ScaffoldOptions
    on_receive = Method.keep_start

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts, x, c_i, c and ``c_i+ - c_i``."""
        zeros = zeros_like_parameters(backbone, self.context.batch_norm)
        return {
            **super().parts(backbone),
            "start": round_buffer(zeros),
            "control": client_buffer(zeros),
            "global_control": frozen(zeros, "control"),
            "change": round_buffer(zeros, upload_to="control"),
        }

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase with corrected gradients."""
        correct, update = self.correct_gradients, self.update_control
        train = ("extractor", "head")
        return [Phase(train, self.loss, self.context.local_epochs, edit_gradients=correct, after=update)]

    def correct_gradients(self, client: Tensors, gradients: Tensors) -> Tensors:
        """Returns ``g - c_i + c``."""
        c_i, c = part_of(client, "control"), part_of(client, "global_control")
        return {n: g - c_i[n] + c[n] if n in c_i else g for n, g in gradients.items()}

    def update_control(self, client: Tensors, progress: PhaseProgress) -> Tensors:
        """Returns ``c_i+`` and ``c_i+ - c_i = (x - y) / (K eta) - c``."""
        found: Tensors = {}
        for name in self.context.exchanged_parameters:
            way = client[f"start.{name}"] - client[name]
            length = progress.steps.to(way.dtype) * progress.lr
            mean_gradient = torch.where(length > 0, way / length, 0)
            change = mean_gradient - client[f"global_control.{name}"]
            found[f"change.{name}"], found[f"control.{name}"] = change, client[f"control.{name}"] + change
        return found

    def aggregate(self, server: Tensors, uploads: Tensors, sizes: Tensor) -> Tensors:
        """Returns x and c; the mean change of c is scaled by the share of clients that uploaded."""
        means = averaged(uploads, torch.full_like(sizes, 1 / len(sizes)))
        for name in self.context.exchanged_parameters:
            means[name] = server[name] + self.options.server_lr * (means[name] - server[name])
            share = len(sizes) / self.context.clients
            means[f"control.{name}"] = server[f"control.{name}"] + share * means[f"control.{name}"]
        return means
