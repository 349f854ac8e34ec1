"""Local (SingleSet): every client trains alone; the baseline of every method that exchanges models."""

from __future__ import annotations

from pfl_fast.methods.base import ONE_PER_CLIENT, Method
from pfl_fast.methods.parts import Part, personal
from pfl_fast.models import Backbone


class Local(Method):
    """Personal extractor and head."""

    title = "Local"
    paper = "no exchange; called Local, SingleSet or stand-alone in papers"
    summary = "every client trains alone: extractor and head are personal"
    family = ONE_PER_CLIENT
    reading = "the same numbers of rounds and epochs as the other methods"
    public_code = ""

    def parts(self, backbone: Backbone) -> dict[str, Part]:
        """Returns a personal extractor and head."""
        return {"extractor": personal(backbone.extractor), "head": personal(backbone.head)}
