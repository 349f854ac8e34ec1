"""FedPHP: each client keeps a moving average of its models, which regularises the next one.

    L(w) = (1 - lam) CE(w) + lam MMD(f(x; w), f(x; p))          p detached
    p <- mu_t p + (1 - mu_t) w_i,  mu_t = mu t / T              after local training

w is averaged as in FedAvg; a client predicts with its inherited model p.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from pfl_fast import ops
from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import TWO_MODELS
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.losses import cross_entropy
from pfl_fast.methods.parts import Part, Tensors, apply, client_buffer, part_of
from pfl_fast.methods.phases import Batch, PerSampleCache, Phase, PhaseProgress
from pfl_fast.models import Backbone
from pfl_fast.options import option


@dataclass(frozen=True)
class FedPHPOptions:
    """Options of FedPHP."""

    mu: float = option(0.9, "weight of the old p in the last round; grows linearly from 0", minimum=0, maximum=1)
    lam: float = option(0.05, "weight of the MMD; the cross entropy has weight 1 - lam", minimum=0, maximum=1)
    inference: str = option(
        "inherited", "predict with the inherited model p, or with the local model w", ["inherited", "local"]
    )


class FedPHP(FedAvg):
    """Shared model w, and a personal moving average p of it."""

    title = "FedPHP"
    paper = "Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021"
    summary = "a shared model, regularised by a personal moving average of the client's models"
    family = TWO_MODELS
    reading = "lam 0.05, with FedCP's MMD; BatchNorm's running statistics are averaged into p like parameters"
    public_code = (
        "PFLlib: lam is 1 by default, which removes the cross entropy, and w is tested after local training "
        "(inference=local)"
    )
    Options = FedPHPOptions

    def final_phases(self) -> list[Phase]:
        """Returns the fine-tune of w, which needs ``inference=local``: p is an average that is not trained."""
        if self.context.finetune_epochs and self.options.inference != "local":
            raise ConfigError("finetune_epochs: FedPHP needs the option inference=local; p is not trained")
        return super().final_phases()

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns FedAvg's parts and p."""
        extra = {
            "inherited_extractor": client_buffer(backbone.extractor),
            "inherited_head": client_buffer(backbone.head),
        }
        return {**super().parts(backbone), **extra}

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase; the features of p are computed once per round."""
        cached = {"inherited": PerSampleCache("inherited_extractor")} if self.options.lam > 0 else {}
        keep = self.options.mu * round / self.context.rounds
        after = partial(moving_average, keep=keep)
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, cached, after=after)]

    @property
    def depends_on_rounds(self) -> bool:
        """True: mu_t depends on T."""
        return bool(self.options.mu > 0)

    def loss(self, client: Any, batch: Batch) -> tuple[Tensor, Tensors]:
        """Returns ``(1 - lam) CE + lam MMD``."""
        z = client.extractor(batch.x)
        loss = cross_entropy(client.head(z), batch.y)
        if not self.options.lam:
            return loss, {}
        return (1 - self.options.lam) * loss + self.options.lam * ops.mmd_rbf(z, batch.cached["inherited"]), {}

    def predict(self, client: Any, batch: Batch) -> Tensor:
        """Returns the logits of p; with ``inference=local`` those of w."""
        prefix = "inherited_" if self.options.inference == "inherited" else ""
        return apply(client, (f"{prefix}extractor", f"{prefix}head"), batch.x)


def moving_average(client: Tensors, progress: PhaseProgress, keep: float) -> Tensors:
    """Returns ``mu_t p + (1 - mu_t) w_i`` as the new p; integer tensors (counters) are w's."""
    found = {}
    for part in ("extractor", "head"):
        for name, w in part_of(client, part).items():
            p = client[f"inherited_{part}.{name}"]
            found[f"inherited_{part}.{name}"] = keep * p + (1 - keep) * w if w.is_floating_point() else w
    return found
