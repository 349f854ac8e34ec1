"""FedBN: FedAvg, except that BatchNorm parameters and running statistics stay local.

    w <- sum_i (n_i / n) w_i,    except gamma, beta, mean and variance of every BatchNorm of client i

On a model without BatchNorm, FedBN is FedAvg.
"""

from __future__ import annotations

from pfl_fast.methods.base import PARTS
from pfl_fast.methods.fedavg import FedAvg


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
