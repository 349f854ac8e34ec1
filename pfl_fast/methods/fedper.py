"""FedPer: a shared extractor and personal heads.

    extractor <- sum_i (n_i / n) extractor_i

head_i stays at client i.
"""

from __future__ import annotations

from pfl_fast.methods.base import PARTS, Method
from pfl_fast.methods.parts import Part, personal, shared
from pfl_fast.models import Backbone


class FedPer(Method):
    """Shared extractor and personal head, trained together."""

    title = "FedPer"
    paper = "Arivazhagan et al., Federated Learning with Personalization Layers, arXiv:1912.00818"
    summary = "shared extractor, personal head, trained together"
    family = PARTS
    reading = "the head is the last part of the model, cut as in the other papers"
    public_code = ""

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns a shared extractor and a personal head."""
        return {"extractor": shared(backbone.extractor, "extractor"), "head": personal(backbone.head)}
