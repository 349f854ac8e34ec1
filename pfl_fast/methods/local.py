"""Local (SingleSet): every client trains alone. What any exchange has to beat."""

from __future__ import annotations

from pfl_fast.methods.base import OWN, Method, Part, personal
from pfl_fast.models import Backbone


class Local(Method):
    """Nothing is shared."""

    title = "Local"
    paper = "no exchange at all; the papers' Local, SingleSet or stand-alone row"
    summary = "every client trains alone: extractor and head are personal"
    family = OWN
    reading = "as many rounds and epochs as the methods it stands beside"
    public_code = ""

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Extractor and head, both personal."""
        return {"extractor": personal(backbone.extractor), "head": personal(backbone.head)}
