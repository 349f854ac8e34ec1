"""Centralised (All): one model, trained on the training samples of all clients together.

    w <- SGD(w; union of all clients' samples)

The upper reference of one model for all: no data stays local. Batches are drawn from the union, an epoch visits each
sample once, and momentum lasts for a round, as for the other methods. Each client is tested with w.
"""

from __future__ import annotations

from pfl_fast.errors import ConfigError
from pfl_fast.methods.base import ONE_MODEL, RunContext
from pfl_fast.methods.fedavg import FedAvg
from pfl_fast.methods.phases import Phase


class Centralised(FedAvg):
    """FedAvg of one client that holds the training samples of all."""

    title = "Centralised"
    paper = "no federation; called All, pooled or centralised training in papers"
    summary = "one model, trained on the pooled data of all clients"
    family = ONE_MODEL
    reading = "the same numbers of rounds and epochs as the other methods; a round's steps are those of all clients"
    public_code = ""

    def __init__(self, options: object, context: RunContext) -> None:
        if context.batch_norm != "shared":
            raise ConfigError(
                f"batch_norm: Centralised has one model, whose BatchNorm is shared; got {context.batch_norm!r}"
            )
        super().__init__(options, context)

    def phases(self, round: int) -> list[Phase]:
        """Returns one phase on the pooled data."""
        return [Phase(("extractor", "head"), self.loss, self.context.local_epochs, pooled=True)]
