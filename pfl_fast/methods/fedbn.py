"""FedBN: FedAvg whose clients keep their BatchNorm, its parameters and its statistics.

    w <- sum_i (n_i / n) w_i,    but gamma, beta, mean and variance of every BatchNorm stay at client i

On a model without BatchNorm it is FedAvg.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pfl_fast.methods.base import PARTS
from pfl_fast.methods.fedavg import FedAvg

# FedPick's paper trains FedBN and all its methods with these, on so many samples of each domain.
_SGD = {"lr": 0.01, "momentum": 0.5, "batch_size": 64, "local_epochs": 1}
DOMAINS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "digits5": {**_SGD, "per_client": 1000},
        "office-caltech10": {**_SGD, "per_client": 125},
        "domainnet": {**_SGD, "per_client": 500},
    }
)


class FedBN(FedAvg):
    """Everything is shared but BatchNorm."""

    title = "FedBN"
    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    summary = "one model for all, but each client's own BatchNorm"
    family = PARTS
    reading = "all five tensors of a BatchNorm stay, found by the type of the module"
    public_code = (
        "PFLlib: names that contain bn, which misses 3 of 20 in a ResNet-18. The authors': clients weigh the same"
    )
    batch_norm = "personal"

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Settings by data set."""
        return {**super().defaults(model, dataset), **DOMAINS.get(dataset, {})}
