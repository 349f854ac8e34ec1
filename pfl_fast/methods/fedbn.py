"""FedBN: FedAvg, except that BatchNorm parameters and running statistics stay local.

    w <- sum_i (n_i / n) w_i,    except gamma, beta, mean and variance of every BatchNorm of client i

On a model without BatchNorm, FedBN is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pfl_fast.methods.base import PARTS
from pfl_fast.methods.fedavg import FedAvg

# Settings of FedPick's paper for all its methods, FedBN among them; per_client is the number of samples per domain.
_SGD = {"lr": 0.01, "momentum": 0.5, "batch_size": 64, "local_epochs": 1}
DOMAINS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "digits5": {**_SGD, "per_client": 1000},
        "office-caltech10": {**_SGD, "per_client": 125},
        "domainnet": {**_SGD, "per_client": 500},
    }
)


class FedBN(FedAvg):
    """Shared extractor and head, personal BatchNorm."""

    title = "FedBN"
    paper = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    summary = "one model for all, personal BatchNorm"
    family = PARTS
    reading = "all five tensors of a BatchNorm stay local; the layers are found by module type"
    public_code = (
        "PFLlib: layers are found by bn in their names, which misses 3 of 20 in ResNet-18. The authors': all clients "
        "have the same weight"
    )
    batch_norm = "personal"

    @classmethod
    def defaults(cls, model: str, dataset: str) -> Mapping[str, Any]:
        """Returns the settings of FedPick's paper for its data sets."""
        return {**super().defaults(model, dataset), **DOMAINS.get(dataset, {})}
