"""LG-FedAvg: personal extractors and a shared head.

    head <- sum_i (n_i / n) head_i,    extractor_i stays at client i

In warm-up rounds the extractor is averaged too, as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pfl_fast.methods.base import PARTS, Method
from pfl_fast.methods.parts import Part, personal, shared
from pfl_fast.methods.phases import Batch
from pfl_fast.models import Backbone
from pfl_fast.options import option

WARMED_UP = ("office-caltech10", "domainnet")  # 20 warm-up rounds in FedPick's paper


@dataclass(frozen=True)
class LGFedAvgOptions:
    """Options of LG-FedAvg."""

    warmup: int = option(0, "number of FedAvg rounds before extractors become personal", minimum=0)


class LGFedAvg(Method):
    """Personal extractor, shared head."""

    title = "LG-FedAvg"
    paper = "Liang et al., Think Locally, Act Globally: FL with Local and Global Representations, arXiv:2001.01523"
    summary = "personal extractor, shared head"
    family = PARTS
    reading = "no warm-up; 20 rounds of it on Office-Caltech10 and DomainNet, as in FedPick's paper"
    public_code = "the authors': training starts from a model trained by FedAvg, as with warmup"
    Options = LGFedAvgOptions

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the learning rate, and the warm-up of two data sets."""
        return {**super().defaults(model, dataset), "warmup": 20 if dataset in WARMED_UP else 0}

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns an extractor that is exchanged only in warm-up rounds, and a shared head."""
        extractor = personal(backbone.extractor)
        if self.options.warmup:
            module = deepcopy(backbone.extractor)
            extractor = Part(module, receive_from="extractor", upload_to="extractor", until_round=self.options.warmup)
        return {"extractor": extractor, "head": shared(backbone.head, "head")}

    def predict_global(self, server: Any, batch: Batch) -> Tensor | None:
        """Returns None: after the warm-up the server has no extractor for its head."""
        return None
