"""LG-FedAvg: personal extractors under a common head.

    head <- sum_i (n_i / n) head_i,    extractor_i stays at client i

In warm-up rounds, if there are any, everything is averaged as in FedAvg.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pfl_fast.methods.base import PARTS, Batch, Method, Part, personal, shared
from pfl_fast.models import Backbone
from pfl_fast.options import option

WARMED_UP = ("office-caltech10", "domainnet")  # for 20 rounds, in FedPick's paper


@dataclass(frozen=True)
class LGFedAvgOptions:
    """Options of LG-FedAvg."""

    warmup: int = option(0, "rounds of FedAvg before extractors become personal", minimum=0)


class LGFedAvg(Method):
    """The head is shared, the extractor is personal."""

    title = "LG-FedAvg"
    paper = "Liang et al., Think Locally, Act Globally, arXiv:2001.01523"
    summary = "personal extractor, shared head"
    family = PARTS
    reading = "no warm-up, but 20 rounds on Office-Caltech10 and DomainNet, as FedPick's paper has it"
    public_code = "the authors': starts from a model trained by FedAvg, as warmup does"
    Options = LGFedAvgOptions

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """A warm-up on two data sets."""
        return {**super().defaults(model, dataset), "warmup": 20 if dataset in WARMED_UP else 0}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """The extractor is exchanged in the first rounds only, or never."""
        extractor = personal(backbone.extractor)
        if self.options.warmup:
            module = deepcopy(backbone.extractor)
            extractor = Part(module, receive_from="extractor", upload_to="extractor", until_round=self.options.warmup)
        return {"extractor": extractor, "head": shared(backbone.head, "head")}

    def predict_global(self, server: Any, batch: Batch) -> Tensor | None:
        """There is no extractor to go with the server's head, but for that of the warm-up."""
        return None
